-- Queues, marks, totals and what the store knows about itself.

-- name: lock_queue
-- description: The same, and nobody else changes the queue until the transaction ends; sysdate is read after that.
SELECT
    floor(unix_timestamp(sysdate(3)) * 1000),
    {queue_columns}
FROM dt.queues FORCE INDEX (by_name)
WHERE namespace = %(namespace)s AND name = %(name)s
FOR UPDATE;

-- name: clock
-- description: The store's now.
SELECT floor(unix_timestamp(sysdate(3)) * 1000);

-- name: new_queue_id
-- description: A number that no queue ever had.
INSERT INTO dt.queue_ids () VALUES ();

DELETE FROM dt.queue_ids WHERE id = last_insert_id();

SELECT last_insert_id();

-- name: insert_queue
-- description: A queue that was not there; its fields follow by update_queue. Answers 1, or 0 if somebody was faster.
INSERT INTO dt.queues (id, namespace, name, {queue_fields})
VALUES (%(id)s, %(namespace)s, %(name)s, {zeros})
ON DUPLICATE KEY UPDATE known = known;

SELECT row_count();

-- name: remove_queues
-- description: The end of rows of queues.
DELETE q FROM dt.queues AS q FORCE INDEX (PRIMARY) WHERE q.id IN %(ids)s;

-- name: next_reap
-- description: When the reaper is next needed, at the earliest.
SELECT min(reap_at) FROM dt.queues FORCE INDEX (by_reap) WHERE reap_at > %(after)s;

-- name: get_marks
-- description: What pushes with these marks answered, and until when the marks live.
SELECT name, digest, answer, expires_at
FROM dt.marks FORCE INDEX (PRIMARY)
WHERE namespace = %(namespace)s AND queue = %(queue)s AND name IN %(names)s;

-- name: set_mark
-- description: Also over one whose life has ended.
INSERT INTO dt.marks (namespace, queue, name, digest, expires_at, answer)
VALUES (%(namespace)s, %(queue)s, %(name)s, %(digest)s, %(expires_at)s, %(answer)s)
ON DUPLICATE KEY UPDATE digest = values(digest), expires_at = values(expires_at), answer = values(answer);

-- name: delete_old_marks
-- description: Bounded: more follow in the next round of the reaper. A mark that was set again meanwhile stays.
DELETE m
FROM (
    SELECT namespace, queue, name
    FROM dt.marks FORCE INDEX (by_end)
    WHERE expires_at <= %(now)s
    ORDER BY expires_at
    LIMIT %(limit)s
) AS old
STRAIGHT_JOIN dt.marks AS m FORCE INDEX (PRIMARY)
    ON m.namespace = old.namespace AND m.queue = old.queue AND m.name = old.name
WHERE m.expires_at <= %(now)s;

-- name: add_to_totals
-- description: What one step did, under its day.
INSERT INTO dt.totals (
    namespace, queue, day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
) VALUES (
    %(namespace)s, %(queue)s, %(day)s, %(accepted)s, %(delivered)s, %(acked)s, %(released)s, %(lapsed)s, %(dead)s,
    %(cancelled)s, %(expired)s, %(respawned)s
)
ON DUPLICATE KEY UPDATE
    accepted = accepted + values(accepted),
    delivered = delivered + values(delivered),
    acked = acked + values(acked),
    released = released + values(released),
    lapsed = lapsed + values(lapsed),
    dead = dead + values(dead),
    cancelled = cancelled + values(cancelled),
    expired = expired + values(expired),
    respawned = respawned + values(respawned);

-- name: totals_of
-- description: What happened in queues, day by day, for many queues.
SELECT
    asked.position, t.day, t.accepted, t.delivered, t.acked, t.released, t.lapsed, t.dead, t.cancelled, t.expired,
    t.respawned
FROM json_table(%(queues)s, '$[*]' COLUMNS (
    position FOR ORDINALITY,
    namespace varchar(255) CHARACTER SET utf8mb4 PATH '$[0]',
    name varchar(255) CHARACTER SET utf8mb4 PATH '$[1]'
)) AS asked
STRAIGHT_JOIN dt.totals AS t FORCE INDEX (PRIMARY)
    ON t.namespace = asked.namespace AND t.queue = asked.name;

-- name: delete_totals
-- description: Of a queue that is purged and not kept.
DELETE t FROM dt.totals AS t FORCE INDEX (PRIMARY) WHERE t.namespace = %(namespace)s AND t.queue = %(queue)s;

-- name: remove_old_totals
-- description: Remove a queue's days that are no longer kept one by one, and answer them.
SELECT accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
FROM dt.totals FORCE INDEX (PRIMARY)
WHERE namespace = %(namespace)s AND queue = %(queue)s AND day > 0 AND day <= %(before)s;

DELETE t
FROM dt.totals AS t FORCE INDEX (PRIMARY)
WHERE t.namespace = %(namespace)s AND t.queue = %(queue)s AND t.day > 0 AND t.day <= %(before)s;

-- name: delete_forgotten_totals
-- description: Of a queue that is not known any more and has no day but day 0.
DELETE t
FROM dt.totals AS t FORCE INDEX (PRIMARY)
LEFT JOIN dt.totals AS later FORCE INDEX (PRIMARY)
    ON later.namespace = t.namespace AND later.queue = t.queue AND later.day > 0
LEFT JOIN dt.queues AS q FORCE INDEX (by_name)
    ON q.namespace = t.namespace AND q.name = t.queue AND q.known = 1
WHERE t.namespace = %(namespace)s AND t.queue = %(queue)s AND later.day IS NULL AND q.id IS NULL;

-- name: get_meta
-- description: The store's one row, and the server's version.
SELECT
    epoch,
    version()
FROM dt.meta
WHERE one = 1;

-- name: outbox_queues
-- description: The queues that have jobs in the outbox, by one seek in the index for each queue.
SELECT namespace, queue
FROM dt.outbox FORCE INDEX (by_queue)
WHERE namespace > ''
GROUP BY namespace, queue
LIMIT %(limit)s;

-- name: delete_outbox_jobs
-- description: The jobs were imported.
DELETE i FROM dt.outbox AS i FORCE INDEX (PRIMARY) WHERE i.number IN %(numbers)s;

-- name: set_aside_outbox_jobs
-- description: Rows that are no jobs stay under an empty namespace, which is never imported.
UPDATE dt.outbox FORCE INDEX (PRIMARY)
SET queue = left(concat(namespace, '/', queue), 255), namespace = ''
WHERE number IN %(numbers)s;

-- name: set_aside_outbox_queue
-- description: The same for all rows under a name that no queue can have.
UPDATE dt.outbox FORCE INDEX (by_queue)
SET queue = left(concat(namespace, '/', queue), 255), namespace = ''
WHERE namespace = %(namespace)s AND queue = %(name)s;

-- name: delete_receipts
-- description: The jobs are in the journal.
DELETE m FROM dt.marks AS m FORCE INDEX (PRIMARY)
WHERE m.namespace = %(namespace)s AND m.queue = %(queue)s AND m.name IN %(names)s;

-- name: insert_outbox_job
-- description: One job of another program, in its transaction.
INSERT INTO dt.outbox (namespace, queue, id, if_exists, priority, due_at, ttl_ms, tries, attributes, body) VALUES (
    %(namespace)s, %(name)s, %(id)s, %(if_exists)s, %(priority)s,
    coalesce(%(due_at)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(3)) DIV 1000 + %(delay_ms)s),
    %(ttl_ms)s, %(tries)s, %(attributes)s, %(body)s
);

-- name: outbox_rules
-- description: What the queue or the server refuses, for the program that is about to push; see MysqlLink.connect.
SELECT
    coalesce(q.max_jobs, 0) AS max_jobs,
    least(coalesce(nullif(q.max_body, 0), packet.most), packet.most) AS max_body,
    coalesce(q.jobs, 0) AS jobs,
    coalesce(q.offline, 0) AS offline
FROM (SELECT @@max_allowed_packet DIV 2 - 65536 AS most) AS packet
LEFT JOIN dt.queues AS q FORCE INDEX (by_name) ON q.namespace = %(namespace)s AND q.name = %(name)s;
