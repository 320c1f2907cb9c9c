-- Queues, marks and what the file knows about itself.

-- name: load_queue
-- description: All that verbs must obey, read in their own step.
SELECT
    {queue_columns}, today
FROM queues
WHERE namespace = :namespace AND name = :name;

-- name: new_queue
-- description: An id that no queue has or had while any job may still be kept under it, and the floor to begin with.
SELECT
    1 + max(
        coalesce((SELECT max(id) FROM queues), 0),
        coalesce((SELECT max(queue) FROM discarded), 0),
        coalesce(-(SELECT min(queue) FROM jobs), 0)
    ),
    floor
FROM forgotten
WHERE one = 1;

-- name: insert_queue
-- description: A queue that was not there; its fields follow by update_queue.
INSERT INTO queues (id, namespace, name, {queue_fields})
VALUES (:id, :namespace, :name, {zeros});

-- name: update_queue
-- description: Write back what a step changed. Positional, because it runs in almost every step.
UPDATE queues
SET
    {queue_assignments}
WHERE id = ?;

-- name: update_queue_and_today
-- description: The same, and what the step adds to the totals of the day.
UPDATE queues
SET
    {queue_assignments},
    today_accepted = today_accepted + ?,
    today_delivered = today_delivered + ?,
    today_acked = today_acked + ?,
    today_released = today_released + ?,
    today_lapsed = today_lapsed + ?,
    today_dead = today_dead + ?,
    today_cancelled = today_cancelled + ?,
    today_expired = today_expired + ?,
    today_respawned = today_respawned + ?
WHERE id = ?;

-- name: some_discarded
-- description: The next purged queue whose jobs are still to be removed.
SELECT queue FROM discarded LIMIT 1;

-- name: remove_queues
-- description: The end of rows of queues.
DELETE FROM queues
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: forget_floor
-- description: What new queues must begin with.
UPDATE forgotten SET floor = max(floor, :floor) WHERE one = 1;

-- name: get_mark
-- description: What a push with this mark answered, while the mark lives.
SELECT digest, answer
FROM marks
WHERE namespace = :namespace AND queue = :queue AND name = :name AND expires_at > :now;

-- name: close_days
-- description: Move the totals that are in queues' own rows to `totals`; the caller writes another day there or nothing.
INSERT INTO totals (
    namespace, queue, day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
) SELECT
    namespace, name, today, today_accepted, today_delivered, today_acked, today_released, today_lapsed, today_dead,
    today_cancelled, today_expired, today_respawned
FROM queues
WHERE id IN (SELECT value FROM json_each(:ids)) AND today > 0
ON CONFLICT (namespace, queue, day) DO UPDATE SET
    accepted = accepted + excluded.accepted,
    delivered = delivered + excluded.delivered,
    acked = acked + excluded.acked,
    released = released + excluded.released,
    lapsed = lapsed + excluded.lapsed,
    dead = dead + excluded.dead,
    cancelled = cancelled + excluded.cancelled,
    expired = expired + excluded.expired,
    respawned = respawned + excluded.respawned;

-- name: begin_day
-- description: Empty totals of a day in a queue's own row.
UPDATE queues
SET
    today = :day,
    today_accepted = 0,
    today_delivered = 0,
    today_acked = 0,
    today_released = 0,
    today_lapsed = 0,
    today_dead = 0,
    today_cancelled = 0,
    today_expired = 0,
    today_respawned = 0
WHERE namespace = :namespace AND name = :name;

-- name: get_totals
-- description: What happened in a queue, day by day. A day comes twice if the clock stepped back over midnight.
SELECT day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
FROM totals
WHERE namespace = :namespace AND queue = :queue
UNION ALL
SELECT
    today, today_accepted, today_delivered, today_acked, today_released, today_lapsed, today_dead, today_cancelled,
    today_expired, today_respawned
FROM queues
WHERE namespace = :namespace AND name = :queue AND today > 0;

-- name: get_meta
-- description: The file's one row.
SELECT epoch, wakes, registry_version
FROM meta
WHERE one = 1;

-- name: count_wake
-- description: Number the announcements of this transaction.
UPDATE meta SET wakes = wakes + 1 WHERE one = 1 RETURNING wakes;

-- name: data_version
-- description: Changes when another connection has committed.
PRAGMA data_version;

-- name: free_pages
-- description: Pages of the file that deleted jobs have left, and that the next jobs fill.
PRAGMA freelist_count;

-- name: forget_version
-- description: A process that has read up to an earlier version cannot learn what was deleted since.
UPDATE forgotten SET registry_version = max(registry_version, :version) WHERE one = 1;
