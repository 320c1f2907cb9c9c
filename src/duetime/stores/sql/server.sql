-- Statements of PostgreSQL, MariaDB and MySQL, by the rules of shared.sql.

-- name: load_queue
-- description: All that verbs must obey, as it was when the transaction began.
SELECT
    {queue_columns}
FROM dt.queues FORCE INDEX (by_name)
WHERE namespace = %(namespace)s AND name = %(name)s;

-- name: forgotten_floor
-- description: What a new queue begins with.
SELECT floor FROM dt.forgotten WHERE one = 1;

-- name: update_queue
-- description: Write back what a step changed.
UPDATE dt.queues
SET
    {queue_assignments}
WHERE id = %(id)s;

-- name: some_discarded
-- description: The next purged queue whose jobs are still to be removed, and that no other reaper works on.
SELECT queue FROM dt.discarded ORDER BY queue LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: forget_floor
-- description: What new queues must begin with.
UPDATE dt.forgotten SET floor = greatest(floor, %(floor)s) WHERE one = 1;

-- name: find_free_queue
-- description: One row if nobody holds the queue. Does not wait for its lock.
SELECT 1 FROM dt.queues FORCE INDEX (by_name) WHERE namespace = %(namespace)s AND name = %(name)s FOR UPDATE SKIP LOCKED;

-- name: next_outbox_jobs
-- description: The oldest jobs of a queue that no other process is importing.
SELECT number, id, if_exists, priority, due_at, ttl_ms, tries, attributes, body
FROM dt.outbox FORCE INDEX (by_queue)
WHERE namespace = %(namespace)s AND queue = %(name)s
ORDER BY number
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: abandoned_receipts
-- description: Receipts of imported jobs that expire before an instant, because they are that old.
SELECT name, answer
FROM dt.marks FORCE INDEX (PRIMARY)
WHERE namespace = %(namespace)s AND queue = %(queue)s AND expires_at < %(until)s
ORDER BY name
LIMIT %(limit)s;

-- name: count_waiting
-- description: How many of one priority wait with first <= due_at < last.
SELECT count(*) FROM dt.jobs FORCE INDEX (by_due)
WHERE
    queue = %(queue)s
    AND place = 0
    AND priority = %(priority)s
    AND due_at >= %(first)s
    AND due_at < %(last)s;

-- name: lock_registry
-- description: One writer of records at a time, so that versions become visible in their order.
SELECT registry_version FROM dt.meta WHERE one = 1 FOR UPDATE;

-- name: forget_version
-- description: A process that has read up to an earlier version cannot learn what was deleted since.
UPDATE dt.forgotten SET registry_version = greatest(registry_version, %(version)s) WHERE one = 1;

-- name: lock_counter
-- description: Nobody else changes the counter until the transaction ends. No row if it was removed just now.
SELECT 1 FROM dt.counters WHERE name = %(name)s FOR UPDATE;

-- name: check_places
-- description: Jobs whose fields do not fit the place they are in.
SELECT queue, id, place
FROM dt.jobs
WHERE
    (place = 1) <> (lease_until > 0)
    OR (place = 2) <> (dead_at > 0)
    OR (place = 2) <> (reason <> '')
    OR (place = 2 AND expires_at > 0)
    OR used < 0
    OR used > attempt;

-- name: check_owners
-- description: Jobs that belong to no queue, not even to a purged one.
SELECT queue, id
FROM dt.jobs AS j
WHERE
    NOT EXISTS (SELECT 1 FROM dt.queues AS q WHERE q.id = j.queue)
    AND NOT EXISTS (SELECT 1 FROM dt.discarded AS d WHERE d.queue = j.queue);

-- name: check_outbox
-- description: Rows of other programs that are no jobs and were set aside.
SELECT number, queue, id
FROM dt.outbox
WHERE namespace = ''
ORDER BY number;
