-- Queues, marks, totals and what the store knows about itself.

-- name: lock_queue
-- description: The same, and nobody else changes the queue until the transaction ends; the clock is read after that.
WITH held AS MATERIALIZED (
    SELECT
        {queue_columns}
    FROM dt.queues
    WHERE namespace = %(namespace)s AND name = %(name)s
    FOR UPDATE
)

SELECT
    floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint,
    held.*
FROM (VALUES (1)) AS one (n)
LEFT JOIN held ON true;

-- name: clock
-- description: The store's now.
SELECT floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint;

-- name: new_queue_id
-- description: A number that no queue ever had.
SELECT nextval('dt.queue_ids');

-- name: insert_queue
-- description: A queue that was not there; its fields follow by update_queue. No row if somebody else was faster.
INSERT INTO dt.queues (id, namespace, name, {queue_fields})
VALUES (nextval('dt.queue_ids'), %(namespace)s, %(name)s, {zeros})
ON CONFLICT (namespace, name) DO NOTHING
RETURNING id;

-- name: remove_queues
-- description: The end of rows of queues.
DELETE FROM dt.queues WHERE id = ANY(%(ids)b::bigint []);

-- name: get_marks
-- description: What pushes with these marks answered, and until when the marks live.
SELECT wanted.name, m.digest, m.answer, m.expires_at
FROM unnest(%(names)b::text []) AS wanted (name)
CROSS JOIN LATERAL (
    SELECT digest, answer, expires_at
    FROM dt.marks
    WHERE namespace = %(namespace)s AND queue = %(queue)s AND name = wanted.name
    LIMIT 1
) AS m;

-- name: totals_of
-- description: What happened in queues, day by day, for many queues.
SELECT
    asked.position, t.day, t.accepted, t.delivered, t.acked, t.released, t.lapsed, t.dead, t.cancelled, t.expired,
    t.respawned
FROM unnest(%(namespaces)b::text [], %(names)b::text []) WITH ORDINALITY AS asked (namespace, name, position)
INNER JOIN dt.totals AS t ON t.namespace = asked.namespace AND t.queue = asked.name;

-- name: get_meta
-- description: The store's one row, and the server's version.
SELECT
    epoch,
    current_setting('server_version')
FROM dt.meta
WHERE one = 1;

-- name: outbox_queues
-- description: The queues that have jobs in the outbox, by one seek in the index for each queue.
WITH RECURSIVE found AS (
    (
        SELECT namespace, queue
        FROM dt.outbox
        WHERE namespace > ''
        ORDER BY namespace, queue
        LIMIT 1
    )
    UNION ALL
    SELECT following.namespace, following.queue
    FROM found
    CROSS JOIN LATERAL (
        SELECT namespace, queue
        FROM dt.outbox
        WHERE (namespace, queue) > (found.namespace, found.queue)
        ORDER BY namespace, queue
        LIMIT 1
    ) AS following
)

SELECT namespace, queue
FROM found
LIMIT %(limit)s;

-- name: delete_outbox_jobs
-- description: The jobs were imported.
DELETE FROM dt.outbox WHERE number = ANY(%(numbers)b::bigint []);

-- name: set_aside_outbox_jobs
-- description: Rows that are no jobs stay under an empty namespace, which is never imported.
UPDATE dt.outbox SET namespace = '', queue = namespace || '/' || queue WHERE number = ANY(%(numbers)b::bigint []);

-- name: set_aside_outbox_queue
-- description: The same for all rows under a name that no queue can have.
UPDATE dt.outbox SET namespace = '', queue = namespace || '/' || queue
WHERE namespace = %(namespace)s AND queue = %(name)s;

-- name: delete_receipts
-- description: The jobs are in the journal.
DELETE FROM dt.marks
WHERE namespace = %(namespace)s AND queue = %(queue)s AND name = ANY(%(names)b::text []);

-- name: insert_outbox_job
-- description: One job of another program, in its transaction.
INSERT INTO dt.outbox (namespace, queue, id, if_exists, priority, due_at, ttl_ms, tries, attributes, body) VALUES (
    %(namespace)s, %(name)s, %(id)s, %(if_exists)s, %(priority)s,
    coalesce(%(due_at)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint + %(delay_ms)s),
    %(ttl_ms)s, %(tries)s, %(attributes)s, %(body)s
);

-- name: outbox_rules
-- description: What the queue refuses, for the program that is about to push.
SELECT max_jobs, max_body, jobs, offline
FROM dt.queues
WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: touch_counter
-- description: A counter that was not there begins as one whose life has ended.
INSERT INTO dt.counters (name, value, expires_at) VALUES (%(name)s, 0, 1)
ON CONFLICT (name) DO NOTHING;

-- name: notify
-- description: A message to the other processes, never in a transaction that changes jobs.
SELECT pg_notify(%(channel)s, %(payload)s);

-- name: check_bodies
-- description: Jobs without a body, and bodies without a job.
SELECT
    coalesce(j.queue, b.queue),
    coalesce(j.id, b.id),
    CASE WHEN b.id IS NULL THEN 'has no body' ELSE 'is a body without a job' END
FROM dt.jobs AS j
FULL JOIN dt.bodies AS b ON j.queue = b.queue AND j.id = b.id
WHERE j.id IS NULL OR b.id IS NULL;
