-- Statements of all three dialects. A dialect's own file replaces one by another statement of the same name.
-- They are written for servers: SQLite gets them without `dt.` and row locks, with `:name` in the place of `%(name)s`, and
-- with a list of ids as JSON. FORCE INDEX and backticks are for MariaDB and MySQL, and left out for the others.
-- `{queue_columns}` and the like are the columns of `queues`, which `QueueRow` lists (queries.py).

-- name: change_queue_id
-- description: Leave all jobs behind in one step, however many.
UPDATE dt.queues SET id = %(new)s WHERE id = %(old)s;

-- name: discard
-- description: Hand a purged queue's jobs to the reaper.
INSERT INTO dt.discarded (queue) VALUES (%(queue)s);

-- name: forget_discarded
-- description: All of its jobs are gone.
DELETE FROM dt.discarded WHERE queue = %(queue)s;

-- name: removable_queues
-- description: Purged queues that nobody used for a while; they have no jobs and no rules.
SELECT id, floor
FROM dt.queues FORCE INDEX (by_known)
WHERE known = 0 AND floor <= %(before)s
ORDER BY floor
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: list_queues
-- description: Every known queue, in order.
SELECT namespace, name
FROM dt.queues FORCE INDEX (by_name)
WHERE known = 1
ORDER BY namespace, name;

-- name: list_namespace
-- description: The known queues of one namespace, in order.
SELECT namespace, name
FROM dt.queues FORCE INDEX (by_name)
WHERE namespace = %(namespace)s AND known = 1
ORDER BY name;

-- name: queues_to_reap
-- description: The reaper's agenda.
SELECT namespace, name
FROM dt.queues FORCE INDEX (by_reap)
WHERE reap_at > 0 AND reap_at <= %(now)s
ORDER BY reap_at
LIMIT %(limit)s;

-- name: next_reap
-- description: When the reaper is next needed, at the earliest.
SELECT (SELECT reap_at FROM dt.queues WHERE reap_at > 0 AND reap_at > %(after)s ORDER BY reap_at LIMIT 1);

-- name: set_mark
-- description: Also over one whose life has ended.
INSERT INTO dt.marks (namespace, queue, name, digest, expires_at, answer)
VALUES (%(namespace)s, %(queue)s, %(name)s, %(digest)s, %(expires_at)s, %(answer)s)
ON CONFLICT (namespace, queue, name) DO UPDATE SET
    digest = excluded.digest,
    expires_at = excluded.expires_at,
    answer = excluded.answer;

-- name: delete_old_marks
-- description: Bounded: more follow in the next round of the reaper.
DELETE FROM dt.marks
WHERE (namespace, queue, name) IN (
    SELECT namespace, queue, name
    FROM dt.marks
    WHERE expires_at <= %(now)s
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: add_to_totals
-- description: What one step did, under its day.
INSERT INTO dt.totals AS t (
    namespace, queue, day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
) VALUES (
    %(namespace)s, %(queue)s, %(day)s, %(accepted)s, %(delivered)s, %(acked)s, %(released)s, %(lapsed)s, %(dead)s,
    %(cancelled)s, %(expired)s, %(respawned)s
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

-- name: delete_totals
-- description: Of a queue that is purged and not kept.
DELETE FROM dt.totals WHERE namespace = %(namespace)s AND queue = %(queue)s;

-- name: queues_with_old_totals
-- description: Queues with days that are no longer kept one by one. Bounded: more follow in the next round of the reaper.
SELECT namespace, queue
FROM dt.totals FORCE INDEX (by_day)
WHERE day > 0 AND day <= %(before)s
ORDER BY day
LIMIT %(limit)s;

-- name: remove_old_totals
-- description: Remove a queue's days that are no longer kept one by one.
DELETE FROM dt.totals
WHERE namespace = %(namespace)s AND queue = %(queue)s AND day > 0 AND day <= %(before)s
RETURNING
    accepted, delivered, acked, released, lapsed, dead, cancelled, expired,
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

-- name: lapsed_jobs
-- description: Leases that ran out, earliest first.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs
WHERE queue = %(queue)s AND place = 1 AND lease_until <= %(now)s
ORDER BY lease_until, id
LIMIT %(limit)s;

-- name: expired_jobs
-- description: Waiting jobs past their time, earliest first.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs
WHERE queue = %(queue)s AND place = 0 AND expires_at > 0 AND expires_at < %(now)s
ORDER BY expires_at, id
LIMIT %(limit)s;

-- name: longest_dead
-- description: The next dead letters to respawn.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs
WHERE queue = %(queue)s AND place = 2
ORDER BY dead_at, id
LIMIT %(limit)s;

-- name: next_lapse
-- description: When the queue's next lease runs out.
SELECT
    (SELECT lease_until FROM dt.jobs WHERE queue = %(queue)s AND place = 1 ORDER BY lease_until LIMIT 1);

-- name: next_expiry
-- description: When the queue's next waiting job expires.
SELECT
    (
        SELECT expires_at FROM dt.jobs
        WHERE queue = %(queue)s AND place = 0 AND expires_at > 0
        ORDER BY expires_at
        LIMIT 1
    );

-- name: list_waiting
-- description: Keys of one priority's waiting jobs after (after_at, after_id), due by last and not expired at alive_at.
SELECT due_at, id
FROM dt.jobs
WHERE
    queue = %(queue)s
    AND place = 0
    AND priority = %(priority)s
    AND due_at <= %(last)s
    AND (due_at, id) > (%(after_at)s, %(after_id)s)
    AND (expires_at = 0 OR expires_at >= %(alive_at)s)
ORDER BY due_at, id
LIMIT %(limit)s;

-- name: list_leased
-- description: Keys of leased jobs after (after_at, after_id).
SELECT lease_until, id
FROM dt.jobs
WHERE queue = %(queue)s AND place = 1 AND (lease_until, id) > (%(after_at)s, %(after_id)s)
ORDER BY lease_until, id
LIMIT %(limit)s;

-- name: list_dead
-- description: Keys of dead jobs after (after_at, after_id).
SELECT dead_at, id
FROM dt.jobs
WHERE queue = %(queue)s AND place = 2 AND (dead_at, id) > (%(after_at)s, %(after_id)s)
ORDER BY dead_at, id
LIMIT %(limit)s;

-- name: some_jobs
-- description: Any jobs of a discarded queue.
SELECT id FROM dt.jobs FORCE INDEX (PRIMARY) WHERE queue = %(queue)s LIMIT %(limit)s;

-- name: lease_jobs
-- description: waiting -> leased, one more delivery each.
UPDATE dt.jobs FORCE INDEX (PRIMARY)
SET
    place = 1,
    lease_until = %(lease_until)s,
    used = used + 1,
    attempt = attempt + 1
WHERE queue = %(queue)s AND id IN %(ids)s;

-- name: heads
-- description: The earliest due_at per priority; three seeks instead of an index without the priority.
SELECT
    (SELECT min(due_at) FROM dt.jobs FORCE INDEX (by_due) WHERE queue = %(queue)s AND place = 0 AND priority = 1),
    (SELECT min(due_at) FROM dt.jobs FORCE INDEX (by_due) WHERE queue = %(queue)s AND place = 0 AND priority = 2),
    (SELECT min(due_at) FROM dt.jobs FORCE INDEX (by_due) WHERE queue = %(queue)s AND place = 0 AND priority = 3);

-- name: last_born
-- description: The highest born among the jobs that a queue holds; reads each.
SELECT max(born) FROM dt.jobs FORCE INDEX (PRIMARY) WHERE queue = %(queue)s;

-- name: keep_result
-- description: Also over one that the id has from before.
INSERT INTO dt.results (namespace, queue, id, born, kept_until, result)
VALUES (%(namespace)s, %(queue)s, %(id)s, %(born)s, %(kept_until)s, %(result)s)
ON CONFLICT (namespace, queue, id) DO UPDATE SET
    born = excluded.born,
    kept_until = excluded.kept_until,
    result = excluded.result;

-- name: result_sizes
-- description: The bytes of results that are kept at this time.
SELECT
    id,
    length(result)
FROM dt.results FORCE INDEX (PRIMARY)
WHERE namespace = %(namespace)s AND queue = %(queue)s AND id IN %(ids)s AND kept_until > %(now)s;

-- name: get_results
-- description: Results that are kept at this time.
SELECT id, born, result, kept_until
FROM dt.results FORCE INDEX (PRIMARY)
WHERE namespace = %(namespace)s AND queue = %(queue)s AND id IN %(ids)s AND kept_until > %(now)s;

-- name: list_joins
-- description: Counts of joins, which are kept as results under names that no id can be.
SELECT id, result, kept_until
FROM dt.results FORCE INDEX (PRIMARY)
WHERE namespace = %(namespace)s AND queue = %(queue)s AND id > %(after)s AND id < %(before)s AND kept_until > %(now)s
ORDER BY id
LIMIT %(limit)s;

-- name: delete_old_results
-- description: Bounded: more follow in the next round of the reaper.
DELETE FROM dt.results
WHERE (namespace, queue, id) IN (
    SELECT namespace, queue, id
    FROM dt.results
    WHERE kept_until <= %(now)s
    ORDER BY kept_until
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: get_record
-- description: One record; a tombstone's value is null.
SELECT value, version
FROM dt.registry
WHERE kind = %(kind)s AND `key` = %(key)s;

-- name: registry_version
-- description: The version of the last write.
SELECT registry_version FROM dt.meta WHERE one = 1;

-- name: next_version
-- description: Every write of a record has its own version.
UPDATE dt.meta SET registry_version = registry_version + 1 WHERE one = 1 RETURNING registry_version;

-- name: put_record
-- description: Write a record, or its tombstone with a value of null.
INSERT INTO dt.registry (kind, key, value, version) VALUES (%(kind)s, %(key)s, %(value)s, %(version)s)
ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = excluded.version;

-- name: delete_old_tombstones
-- description: All but the last ones; answers their versions, which are few, because each deletion does this.
DELETE FROM dt.registry
WHERE
    value IS NULL
    AND version <= (
        SELECT version
        FROM dt.registry
        WHERE value IS NULL
        ORDER BY version DESC
        LIMIT 1 OFFSET %(keep)s
    )
RETURNING version;

-- name: forgotten_version
-- description: The last deletion whose tombstone is gone.
SELECT registry_version FROM dt.forgotten WHERE one = 1;

-- name: list_records
-- description: All of a kind, in order.
SELECT `key`, value, version
FROM dt.registry FORCE INDEX (PRIMARY)
WHERE kind = %(kind)s AND value IS NOT NULL
ORDER BY `key`;

-- name: records_since
-- description: What was written after a version, oldest write first; tombstones with a value of null.
SELECT kind, `key`, value, version
FROM dt.registry FORCE INDEX (by_version)
WHERE version > %(since)s
ORDER BY version;

-- name: get_counter
-- description: A counter, live or not.
SELECT value, expires_at
FROM dt.counters
WHERE name = %(name)s;

-- name: put_counter
-- description: Write a counter.
INSERT INTO dt.counters (name, value, expires_at) VALUES (%(name)s, %(value)s, %(expires_at)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at;

-- name: counters_from
-- description: Live counters whose names are in a range, in order.
SELECT name, value
FROM dt.counters FORCE INDEX (PRIMARY)
WHERE name >= %(prefix)s AND name < %(beyond)s AND (expires_at = 0 OR expires_at > %(now)s)
ORDER BY name;

-- name: delete_old_counters
-- description: Bounded: more follow in the next round of the reaper.
DELETE FROM dt.counters
WHERE name IN (
    SELECT name
    FROM dt.counters
    WHERE expires_at > 0 AND expires_at <= %(now)s
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: has_ended
-- description: Whether a mark, counter or result is left that is no longer needed.
SELECT
    (
        SELECT expires_at
        FROM dt.marks FORCE INDEX (by_end)
        WHERE expires_at <= %(before)s
        ORDER BY expires_at
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT expires_at
        FROM dt.counters FORCE INDEX (by_end)
        WHERE expires_at > 0 AND expires_at <= %(now)s
        ORDER BY expires_at
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT kept_until
        FROM dt.results FORCE INDEX (by_end)
        WHERE kept_until <= %(now)s
        ORDER BY kept_until
        LIMIT 1
    ) IS NOT NULL;

-- name: check_counts
-- description: Queues whose counts differ from a walk over their jobs.
SELECT
    q.namespace || '/' || q.name,
    q.jobs, q.leased, q.dead,
    count(j.id),
    count(*) FILTER (WHERE j.place = 1),
    count(*) FILTER (WHERE j.place = 2)
FROM dt.queues AS q
LEFT JOIN dt.jobs AS j ON j.queue = q.id
GROUP BY q.id
HAVING
    q.jobs <> count(j.id)
    OR q.leased <> count(*) FILTER (WHERE j.place = 1)
    OR q.dead <> count(*) FILTER (WHERE j.place = 2);

-- name: check_agenda
-- description: Queues that the reaper would visit too late, or never.
SELECT
    q.namespace || '/' || q.name,
    q.reap_at,
    min(CASE WHEN j.place = 1 THEN j.lease_until ELSE j.expires_at + 1 END)
FROM dt.queues AS q
INNER JOIN dt.jobs AS j ON j.queue = q.id AND (j.place = 1 OR (j.place = 0 AND j.expires_at > 0))
GROUP BY q.id
HAVING
    q.reap_at = 0
    OR q.reap_at > min(CASE WHEN j.place = 1 THEN j.lease_until ELSE j.expires_at + 1 END);
