-- The view of jobs for people shows times after 2038, also beside rows with odd ones, and no text for other bodies.
CREATE OR REPLACE VIEW dt.readable_jobs AS
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
    timestampadd(
        MICROSECOND,
        (least(greatest(j.due_at, 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(j.due_at, 2147483647000), 0) / 1000.0)
    ) AS due_at,
    timestampadd(
        MICROSECOND,
        (least(greatest(nullif(j.expires_at, 0), 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(nullif(j.expires_at, 0), 2147483647000), 0) / 1000.0)
    ) AS expires_at,
    timestampadd(
        MICROSECOND,
        (least(greatest(nullif(j.lease_until, 0), 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(nullif(j.lease_until, 0), 2147483647000), 0) / 1000.0)
    ) AS lease_until,
    timestampadd(
        MICROSECOND,
        (least(greatest(nullif(j.dead_at, 0), 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(nullif(j.dead_at, 0), 2147483647000), 0) / 1000.0)
    ) AS dead_at,
    j.tries,
    j.used,
    j.reason,
    j.error,
    b.attributes,
    b.body,
    CASE
        WHEN b.body = cast(convert(convert(convert(b.body USING utf8mb4) USING utf16) USING utf8mb4) AS BINARY)
            THEN convert(b.body USING utf8mb4)
    END AS payload,
    j.attempt AS attempts,
    nullif(j.lease_until, 0) DIV 1000 AS reserved_at,
    j.due_at DIV 1000 AS available_at,
    j.born DIV 1000 AS created_at
FROM dt.jobs AS j
INNER JOIN dt.queues AS q ON q.id = j.queue
INNER JOIN dt.bodies AS b ON b.queue = j.queue AND b.id = j.id;
