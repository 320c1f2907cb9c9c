-- The view of jobs for people can be read beside rows with odd times.
CREATE OR REPLACE VIEW dt.duetime_jobs AS
SELECT
    q.namespace,
    q.name AS queue,
    j.id,
    CASE
        WHEN j.place = 1 THEN 'leased'
        WHEN j.place = 2 THEN 'dead'
        WHEN j.due_at > extract(EPOCH FROM clock_timestamp()) * 1000 THEN 'delayed'
        WHEN j.expires_at > 0 AND j.expires_at < extract(EPOCH FROM clock_timestamp()) * 1000 THEN 'expired'
        ELSE 'ready'
    END AS state,
    CASE j.priority WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END AS priority,
    to_timestamp(least(greatest(j.due_at, 0), 253402214399999) / 1000.0) AS due_at,
    to_timestamp(nullif(least(greatest(j.expires_at, 0), 253402214399999), 0) / 1000.0) AS expires_at,
    to_timestamp(nullif(least(greatest(j.lease_until, 0), 253402214399999), 0) / 1000.0) AS lease_until,
    to_timestamp(nullif(least(greatest(j.dead_at, 0), 253402214399999), 0) / 1000.0) AS dead_at,
    j.tries,
    j.used,
    j.reason,
    j.error,
    b.attributes,
    b.body,
    dt.body_text(b.body) AS payload,
    j.attempt AS attempts,
    nullif(j.lease_until, 0) / 1000 AS reserved_at,
    j.due_at / 1000 AS available_at,
    j.born / 1000 AS created_at
FROM dt.jobs AS j
INNER JOIN dt.queues AS q ON q.id = j.queue
INNER JOIN dt.bodies AS b ON b.queue = j.queue AND b.id = j.id;
