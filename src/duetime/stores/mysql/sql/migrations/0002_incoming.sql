-- Jobs of other programs' transactions, and rows that one can read.

-- Jobs that other programs have written in transactions of their own (`duetime.push_in`), until a server sees them:
-- its reaper moves them into `jobs`, as a push.
CREATE TABLE dt.incoming (
    number bigint AUTO_INCREMENT PRIMARY KEY,
    namespace varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    id varchar(255) NOT NULL,
    if_exists varchar(16) NOT NULL,     -- keep or replace
    priority tinyint NOT NULL,
    due_at bigint NOT NULL,
    ttl_ms bigint NOT NULL,             -- counts from the moment in which a server sees the job
    tries bigint NOT NULL,
    attributes longtext,                -- JSON; null for none
    body longblob NOT NULL,
    -- serves take_incoming
    INDEX by_queue (namespace, queue, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Jobs for people with a client or a BI tool; no statement of the store reads it. Times are in the time zone of the
-- session. Id, queue and the last five columns are those of Laravel's table `jobs`, with its unix seconds; but its
-- reserved_at is when a job was taken, and here it is when the lease ends.
CREATE VIEW dt.readable_jobs AS
SELECT
    q.namespace,
    q.name AS queue,
    j.id,
    CASE
        WHEN j.place = 1 THEN 'leased'
        WHEN j.place = 2 THEN 'dead'
        WHEN j.due_at > unix_timestamp(now(3)) * 1000 THEN 'delayed'
        WHEN j.expires_at > 0 AND j.expires_at < unix_timestamp(now(3)) * 1000 THEN 'expired'
        ELSE 'ready'
    END AS state,
    CASE j.priority WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END AS priority,
    from_unixtime(j.due_at / 1000.0) AS due_at,
    from_unixtime(nullif(j.expires_at, 0) / 1000.0) AS expires_at,
    from_unixtime(nullif(j.lease_until, 0) / 1000.0) AS lease_until,
    from_unixtime(nullif(j.dead_at, 0) / 1000.0) AS dead_at,
    j.tries,
    j.used,
    j.reason,
    j.error,
    b.attributes,
    b.body,
    convert(b.body USING utf8mb4) AS payload,
    j.attempt AS attempts,
    nullif(j.lease_until, 0) DIV 1000 AS reserved_at,
    j.due_at DIV 1000 AS available_at,
    j.born DIV 1000 AS created_at
FROM dt.jobs AS j
INNER JOIN dt.queues AS q ON q.id = j.queue
INNER JOIN dt.bodies AS b ON b.queue = j.queue AND b.id = j.id;
