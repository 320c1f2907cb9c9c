-- Results of finished jobs, kept for a while. Kept by the queue's name: a purge does not touch them.
CREATE TABLE results (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    born INTEGER NOT NULL,              -- of the job that gave the result
    kept_until INTEGER NOT NULL,
    result BLOB NOT NULL,
    PRIMARY KEY (namespace, queue, id)
);

-- serves delete_old_results
CREATE INDEX results_old ON results (kept_until);
