-- Queues, marks, totals and what the store knows about itself.

-- name: load_queue
-- description: All that verbs must obey, as it was when the transaction began.
SELECT
    id,
    known,
    paused,
    strict,
    expired_to_dead,
    max_jobs,
    max_body,
    kept,
    offline,
    floor,
    last_born,
    expired,
    jobs,
    leased,
    dead,
    reap_at
FROM dt.queues
WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: lock_queue
-- description: The same, and nobody else changes the queue until the transaction ends; the clock is read after that.
WITH held AS MATERIALIZED (
    SELECT
        id,
        known,
        paused,
        strict,
        expired_to_dead,
        max_jobs,
        max_body,
        kept,
        offline,
        floor,
        last_born,
        expired,
        jobs,
        leased,
        dead,
        reap_at
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
INSERT INTO dt.queues (
    id,
    namespace,
    name,
    known,
    paused,
    strict,
    expired_to_dead,
    max_jobs,
    max_body,
    kept,
    offline,
    floor,
    last_born,
    expired,
    jobs,
    leased,
    dead,
    reap_at
) VALUES (nextval('dt.queue_ids'), %(namespace)s, %(name)s, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
ON CONFLICT (namespace, name) DO NOTHING
RETURNING id;

-- name: forgotten_floor
-- description: What a new queue begins with.
SELECT floor FROM dt.forgotten WHERE one = 1;

-- name: update_queue
-- description: Write back what a step changed.
UPDATE dt.queues
SET
    known = %(known)s,
    paused = %(paused)s,
    strict = %(strict)s,
    expired_to_dead = %(expired_to_dead)s,
    max_jobs = %(max_jobs)s,
    max_body = %(max_body)s,
    kept = %(kept)s,
    offline = %(offline)s,
    floor = %(floor)s,
    last_born = %(last_born)s,
    expired = %(expired)s,
    jobs = %(jobs)s,
    leased = %(leased)s,
    dead = %(dead)s,
    reap_at = %(reap_at)s
WHERE id = %(id)s;

-- name: change_queue_id
-- description: Leave all jobs behind in one step, however many.
UPDATE dt.queues SET id = %(new)s WHERE id = %(old)s;

-- name: discard
-- description: Hand a purged queue's jobs to the reaper.
INSERT INTO dt.discarded (queue) VALUES (%(queue)s);

-- name: some_discarded
-- description: The next purged queue whose jobs are still to be removed, and that no other reaper works on.
SELECT queue FROM dt.discarded ORDER BY queue LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: forget_discarded
-- description: All of its jobs are gone.
DELETE FROM dt.discarded WHERE queue = %(queue)s;

-- name: removable_queues
-- description: Purged queues that nobody used for a while; they have no jobs and no rules.
SELECT
    id,
    floor
FROM dt.queues
WHERE known = 0 AND floor <= %(before)s
ORDER BY floor
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: remove_queues
-- description: The end of rows of queues.
DELETE FROM dt.queues WHERE id = ANY(%(ids)b::bigint []);

-- name: forget_floor
-- description: What new queues must begin with.
UPDATE dt.forgotten SET floor = greatest(floor, %(floor)s) WHERE one = 1;

-- name: list_queues
-- description: Every known queue, in order.
SELECT
    namespace,
    name
FROM dt.queues
WHERE known = 1
ORDER BY namespace, name;

-- name: list_namespace
-- description: The known queues of one namespace, in order.
SELECT
    namespace,
    name
FROM dt.queues
WHERE namespace = %(namespace)s AND known = 1
ORDER BY name;

-- name: queues_to_reap
-- description: The reaper's agenda.
SELECT
    namespace,
    name
FROM dt.queues
WHERE reap_at > 0 AND reap_at <= %(now)s
ORDER BY reap_at
LIMIT %(limit)s;

-- name: find_free_queue
-- description: One row if nobody holds the queue. Does not wait for its lock.
SELECT 1 FROM dt.queues WHERE namespace = %(namespace)s AND name = %(name)s FOR UPDATE SKIP LOCKED;

-- name: next_reap
-- description: When the reaper is next needed, at the earliest.
SELECT (SELECT reap_at FROM dt.queues WHERE reap_at > 0 AND reap_at > %(after)s ORDER BY reap_at LIMIT 1);

-- name: get_marks
-- description: What pushes with these marks answered, and until when the marks live.
SELECT
    wanted.name,
    m.digest,
    m.answer,
    m.expires_at
FROM unnest(%(names)b::text []) AS wanted (name)
CROSS JOIN LATERAL (
    SELECT
        digest,
        answer,
        expires_at
    FROM dt.marks
    WHERE namespace = %(namespace)s AND queue = %(queue)s AND name = wanted.name
    LIMIT 1
) AS m;

-- name: set_mark
-- description: Also over one whose life has ended.
INSERT INTO dt.marks (
    namespace,
    queue,
    name,
    digest,
    expires_at,
    answer
) VALUES (%(namespace)s, %(queue)s, %(name)s, %(digest)s, %(expires_at)s, %(answer)s)
ON CONFLICT (namespace, queue, name) DO UPDATE SET
    digest = excluded.digest,
    expires_at = excluded.expires_at,
    answer = excluded.answer;

-- name: delete_old_marks
-- description: Bounded, because nobody waits for it.
DELETE FROM dt.marks
WHERE (namespace, queue, name) IN (
    SELECT
        namespace,
        queue,
        name
    FROM dt.marks
    WHERE expires_at <= %(now)s
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: add_to_totals
-- description: What one step did, under its day.
INSERT INTO dt.totals AS t (
    namespace,
    queue,
    day,
    accepted,
    delivered,
    acked,
    released,
    lapsed,
    dead,
    cancelled,
    expired,
    respawned
) VALUES (
    %(namespace)s,
    %(queue)s,
    %(day)s,
    %(accepted)s,
    %(delivered)s,
    %(acked)s,
    %(released)s,
    %(lapsed)s,
    %(dead)s,
    %(cancelled)s,
    %(expired)s,
    %(respawned)s
)
ON CONFLICT (namespace, queue, day) DO UPDATE SET
    accepted = t.accepted + excluded.accepted,
    delivered = t.delivered + excluded.delivered,
    acked = t.acked + excluded.acked,
    released = t.released + excluded.released,
    lapsed = t.lapsed + excluded.lapsed,
    dead = t.dead + excluded.dead,
    cancelled = t.cancelled + excluded.cancelled,
    expired = t.expired + excluded.expired,
    respawned = t.respawned + excluded.respawned;

-- name: totals_of
-- description: What happened in queues, day by day, for many at once.
SELECT
    asked.position,
    t.day,
    t.accepted,
    t.delivered,
    t.acked,
    t.released,
    t.lapsed,
    t.dead,
    t.cancelled,
    t.expired,
    t.respawned
FROM unnest(%(namespaces)b::text [], %(names)b::text []) WITH ORDINALITY AS asked (namespace, name, position)
INNER JOIN dt.totals AS t ON t.namespace = asked.namespace AND t.queue = asked.name;

-- name: delete_totals
-- description: Of a queue that is purged and not kept.
DELETE FROM dt.totals WHERE namespace = %(namespace)s AND queue = %(queue)s;

-- name: queues_with_old_totals
-- description: Queues that have days which are no longer kept one by one. Bounded, because nobody waits for it.
SELECT
    namespace,
    queue
FROM dt.totals
WHERE day > 0 AND day <= %(before)s
ORDER BY day
LIMIT %(limit)s;

-- name: take_old_totals
-- description: Remove a queue's days that are no longer kept one by one.
DELETE FROM dt.totals
WHERE namespace = %(namespace)s AND queue = %(queue)s AND day > 0 AND day <= %(before)s
RETURNING
    accepted,
    delivered,
    acked,
    released,
    lapsed,
    dead,
    cancelled,
    expired,
    respawned;

-- name: delete_forgotten_totals
-- description: Of a queue that is not known any more and has no day but day 0.
DELETE FROM dt.totals
WHERE
    namespace = %(namespace)s
    AND queue = %(queue)s
    AND NOT EXISTS (
        SELECT 1 FROM dt.totals
        WHERE namespace = %(namespace)s AND queue = %(queue)s AND day > 0
    )
    AND NOT EXISTS (
        SELECT 1 FROM dt.queues
        WHERE namespace = %(namespace)s AND name = %(queue)s AND known = 1
    );

-- name: get_meta
-- description: The store's one row, and the server's version.
SELECT
    epoch,
    current_setting('server_version')
FROM dt.meta
WHERE one = 1;

-- name: incoming_queues
-- description: The queues of jobs that other programs have committed: one look at the index for each queue.
WITH RECURSIVE found AS (
    (
        SELECT
            namespace,
            queue
        FROM dt.incoming
        WHERE namespace > ''
        ORDER BY namespace, queue
        LIMIT 1
    )
    UNION ALL
    SELECT
        following.namespace,
        following.queue
    FROM found
    CROSS JOIN LATERAL (
        SELECT
            namespace,
            queue
        FROM dt.incoming
        WHERE (namespace, queue) > (found.namespace, found.queue)
        ORDER BY namespace, queue
        LIMIT 1
    ) AS following
)

SELECT
    namespace,
    queue
FROM found
LIMIT %(limit)s;

-- name: take_incoming
-- description: The oldest of them that no other process takes just now, up to a number of jobs.
SELECT
    number,
    id,
    if_exists,
    priority,
    due_at,
    ttl_ms,
    tries,
    attributes,
    body
FROM dt.incoming
WHERE namespace = %(namespace)s AND queue = %(name)s
ORDER BY number
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: delete_incoming
-- description: Those that were taken.
DELETE FROM dt.incoming WHERE number = ANY(%(numbers)b::bigint []);

-- name: set_aside_incoming
-- description: Rows that are no jobs stay under an empty namespace, where nobody takes them.
UPDATE dt.incoming SET namespace = '', queue = namespace || '/' || queue WHERE number = ANY(%(numbers)b::bigint []);

-- name: set_aside_incoming_queue
-- description: The same for all rows under a name that no queue can have.
UPDATE dt.incoming SET namespace = '', queue = namespace || '/' || queue
WHERE namespace = %(namespace)s AND queue = %(name)s;

-- name: late_receipts
-- description: Receipts of taken jobs that expire before an instant, because they were left that long ago.
SELECT
    name,
    answer
FROM dt.marks
WHERE namespace = %(namespace)s AND queue = %(queue)s AND expires_at < %(until)s
ORDER BY name
LIMIT %(limit)s;

-- name: delete_receipts
-- description: The jobs are on record.
DELETE FROM dt.marks
WHERE namespace = %(namespace)s AND queue = %(queue)s AND name = ANY(%(names)b::text []);

-- name: insert_incoming
-- description: One job of another program, in its transaction.
INSERT INTO dt.incoming (
    namespace,
    queue,
    id,
    if_exists,
    priority,
    due_at,
    ttl_ms,
    tries,
    attributes,
    body
) VALUES (
    %(namespace)s,
    %(name)s,
    %(id)s,
    %(if_exists)s,
    %(priority)s,
    coalesce(%(due_at)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint + %(delay_ms)s),
    %(ttl_ms)s,
    %(tries)s,
    %(attributes)s,
    %(body)s
);

-- name: incoming_rules
-- description: What the queue refuses, for the program that is about to push.
SELECT
    max_jobs,
    max_body,
    jobs,
    offline
FROM dt.queues
WHERE namespace = %(namespace)s AND name = %(name)s;
