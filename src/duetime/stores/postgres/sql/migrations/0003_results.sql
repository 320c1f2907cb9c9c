-- Results of finished jobs, kept for a while. Kept by the queue's name: a purge does not touch them.
CREATE TABLE dt.results (
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    born bigint NOT NULL,               -- of the job that gave the result
    kept_until bigint NOT NULL,
    result bytea NOT NULL,
    PRIMARY KEY (namespace, queue, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- serves delete_old_results
CREATE INDEX dt_results_old ON dt.results (kept_until);
