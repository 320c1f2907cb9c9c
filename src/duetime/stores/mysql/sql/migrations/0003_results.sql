-- Results of finished jobs, kept for a while. Kept by the queue's name: a purge does not touch them.
CREATE TABLE dt.results (
    namespace varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    id varchar(255) NOT NULL,
    born bigint NOT NULL,               -- of the job that gave the result
    kept_until bigint NOT NULL,
    result longblob NOT NULL,
    PRIMARY KEY (namespace, queue, id),
    -- serves delete_old_results
    INDEX by_end (kept_until)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;
