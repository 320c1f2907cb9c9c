-- What verbs do to jobs, always behind the lock of their queue's row.

-- name: insert_jobs
-- description: New incarnations wait; columns of the same length, one statement for any number of jobs.
WITH new AS (
    SELECT *
    FROM unnest(
        %(ids)b::text [],
        %(borns)b::bigint [],
        %(priorities)b::bigint [],
        %(due_ats)b::bigint [],
        %(expires_ats)b::bigint [],
        %(tries)b::bigint [],
        %(attempts)b::bigint [],
        %(sizes)b::bigint [],
        %(attributes)b::text [],
        %(bodies)b::bytea []
    ) AS given (id, born, priority, due_at, expires_at, tries, attempt, size, attributes, body)
),

kept AS (
    INSERT INTO dt.bodies (queue, id, attributes, body)
    SELECT
        %(queue)s,
        new.id,
        new.attributes,
        new.body
    FROM new
)

INSERT INTO dt.jobs (
    queue,
    id,
    born,
    place,
    priority,
    due_at,
    expires_at,
    lease_until,
    dead_at,
    tries,
    used,
    attempt,
    size,
    reason,
    error
)
SELECT
    %(queue)s,
    new.id,
    new.born,
    0,
    new.priority,
    new.due_at,
    new.expires_at,
    0,
    0,
    new.tries,
    0,
    new.attempt,
    new.size,
    '',
    ''
FROM new;

-- name: find_jobs
-- description: What the rules need to know about jobs by id; ids that are not there are passed over.
SELECT
    id,
    born,
    place,
    priority,
    due_at,
    expires_at,
    tries,
    used,
    attempt
FROM dt.jobs
WHERE queue = %(queue)s AND id = ANY(%(ids)b::text []);

-- name: ready_jobs
-- description: What a consumer may get from one priority after (after_at, after_id), in order, without payloads.
SELECT
    id,
    born,
    due_at,
    expires_at,
    tries,
    used,
    attempt,
    error,
    size
FROM dt.jobs
WHERE
    queue = %(queue)s
    AND place = 0
    AND priority = %(priority)s
    AND due_at <= %(now)s
    AND (due_at, id) > (%(after_at)s, %(after_id)s)
ORDER BY due_at, id
LIMIT %(limit)s;

-- name: ready_ahead
-- description: The first jobs that a consumer may get from each priority, in order, without payloads.
SELECT
    p.priority,
    j.id,
    j.born,
    j.due_at,
    j.expires_at,
    j.tries,
    j.used,
    j.attempt,
    j.error,
    j.size
FROM (VALUES (1::smallint), (2::smallint), (3::smallint)) AS p (priority)
CROSS JOIN LATERAL (
    SELECT
        id,
        born,
        due_at,
        expires_at,
        tries,
        used,
        attempt,
        error,
        size
    FROM dt.jobs
    WHERE queue = %(queue)s AND place = 0 AND priority = p.priority AND due_at <= %(now)s
    ORDER BY due_at, id
    LIMIT %(limit)s
) AS j;

-- name: get_payloads
-- description: The bodies of jobs by id, and their attributes.
SELECT
    id,
    body,
    attributes
FROM dt.bodies
WHERE queue = %(queue)s AND id = ANY(%(ids)b::text []);

-- name: lease_jobs
-- description: waiting -> leased, one more delivery each.
UPDATE dt.jobs
SET
    place = 1,
    lease_until = %(lease_until)s,
    used = used + 1,
    attempt = attempt + 1
WHERE queue = %(queue)s AND id = ANY(%(ids)b::text []);

-- name: count_held
-- description: How many of these leases (id, born, attempt) are held.
SELECT count(*)
FROM unnest(%(ids)b::text [], %(borns)b::bigint [], %(attempts)b::bigint []) AS lease (id, born, attempt)
INNER JOIN dt.jobs AS j ON j.queue = %(queue)s AND j.id = lease.id
WHERE j.place = 1 AND j.born = lease.born AND j.attempt = lease.attempt;

-- name: move_jobs
-- description: Every other way from place to place. An error of null keeps the one that is there.
UPDATE dt.jobs AS j
SET
    place = moved.place,
    due_at = moved.due_at,
    expires_at = moved.expires_at,
    lease_until = moved.lease_until,
    dead_at = moved.dead_at,
    tries = moved.tries,
    used = moved.used,
    reason = moved.reason,
    error = coalesce(moved.error, j.error)
FROM unnest(
    %(ids)b::text [],
    %(places)b::bigint [],
    %(due_ats)b::bigint [],
    %(expires_ats)b::bigint [],
    %(lease_untils)b::bigint [],
    %(dead_ats)b::bigint [],
    %(tries)b::bigint [],
    %(used)b::bigint [],
    %(reasons)b::text [],
    %(errors)b::text []
) AS moved (id, place, due_at, expires_at, lease_until, dead_at, tries, used, reason, error)
WHERE j.queue = %(queue)s AND j.id = moved.id;

-- name: delete_jobs
-- description: The end of jobs in any place.
WITH gone AS (
    DELETE FROM dt.bodies WHERE queue = %(queue)s AND id = ANY(%(ids)b::text [])
)

DELETE FROM dt.jobs WHERE queue = %(queue)s AND id = ANY(%(ids)b::text []);

-- name: lapsed_jobs
-- description: Leases that ran out, earliest first.
SELECT
    id,
    born,
    place,
    priority,
    due_at,
    expires_at,
    tries,
    used,
    attempt
FROM dt.jobs
WHERE queue = %(queue)s AND place = 1 AND lease_until <= %(now)s
ORDER BY lease_until, id
LIMIT %(limit)s;

-- name: expired_jobs
-- description: Waiting jobs past their time, earliest first.
SELECT
    id,
    born,
    place,
    priority,
    due_at,
    expires_at,
    tries,
    used,
    attempt
FROM dt.jobs
WHERE queue = %(queue)s AND place = 0 AND expires_at > 0 AND expires_at < %(now)s
ORDER BY expires_at, id
LIMIT %(limit)s;

-- name: longest_dead
-- description: The next dead letters to respawn.
SELECT
    id,
    born,
    place,
    priority,
    due_at,
    expires_at,
    tries,
    used,
    attempt
FROM dt.jobs
WHERE queue = %(queue)s AND place = 2
ORDER BY dead_at, id
LIMIT %(limit)s;

-- name: next_lapse
-- description: When the queue's next lease runs out.
SELECT min(lease_until) FROM dt.jobs WHERE queue = %(queue)s AND place = 1;

-- name: next_expiry
-- description: When the queue's next waiting job expires.
SELECT min(expires_at) FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND expires_at > 0;

-- name: heads
-- description: The earliest due_at per priority; three seeks instead of an index without the priority.
SELECT
    (SELECT min(due_at) FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 1),
    (SELECT min(due_at) FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 2),
    (SELECT min(due_at) FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 3);

-- name: heads_of
-- description: The earliest due_at of each queue that is not paused, for all queues with waiting consumers at once.
SELECT
    least(
        (SELECT min(due_at) FROM dt.jobs WHERE queue = q.id AND place = 0 AND priority = 1),
        (SELECT min(due_at) FROM dt.jobs WHERE queue = q.id AND place = 0 AND priority = 2),
        (SELECT min(due_at) FROM dt.jobs WHERE queue = q.id AND place = 0 AND priority = 3)
    )
FROM unnest(%(namespaces)b::text [], %(names)b::text []) WITH ORDINALITY AS asked (namespace, name, position)
LEFT JOIN dt.queues AS q ON q.namespace = asked.namespace AND q.name = asked.name AND q.paused = 0
ORDER BY asked.position;

-- name: get_jobs
-- description: Jobs as they are, by id.
SELECT
    j.id,
    j.born,
    j.place,
    j.priority,
    j.due_at,
    j.expires_at,
    j.lease_until,
    j.dead_at,
    j.tries,
    j.used,
    j.attempt,
    j.reason,
    j.error,
    b.attributes,
    b.body
FROM dt.jobs AS j
INNER JOIN dt.bodies AS b ON b.queue = j.queue AND b.id = j.id
WHERE j.queue = %(queue)s AND j.id = ANY(%(ids)b::text []);

-- name: job_sizes
-- description: The bytes of jobs' payloads by id.
SELECT
    id,
    size
FROM dt.jobs
WHERE queue = %(queue)s AND id = ANY(%(ids)b::text []);

-- name: list_waiting
-- description: Keys of one priority's waiting jobs after (after_at, after_id), due by last and not expired at alive_at.
SELECT
    due_at,
    id
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
SELECT
    lease_until,
    id
FROM dt.jobs
WHERE queue = %(queue)s AND place = 1 AND (lease_until, id) > (%(after_at)s, %(after_id)s)
ORDER BY lease_until, id
LIMIT %(limit)s;

-- name: list_dead
-- description: Keys of dead jobs after (after_at, after_id).
SELECT
    dead_at,
    id
FROM dt.jobs
WHERE queue = %(queue)s AND place = 2 AND (dead_at, id) > (%(after_at)s, %(after_id)s)
ORDER BY dead_at, id
LIMIT %(limit)s;

-- name: count_waiting
-- description: How many of one priority wait with first <= due_at < last.
SELECT count(*) FROM dt.jobs
WHERE
    queue = %(queue)s
    AND place = 0
    AND priority = %(priority)s
    AND due_at >= %(first)s
    AND due_at < %(last)s;

-- name: count_expired
-- description: How many wait past their time, because nobody has met them yet.
SELECT count(*) FROM dt.jobs
WHERE queue = %(queue)s AND place = 0 AND expires_at > 0 AND expires_at < %(now)s;

-- name: set_aside_jobs
-- description: Rows that cannot be read as jobs leave their queue: the number of the queue is negative from now on.
UPDATE dt.jobs SET queue = -queue
WHERE queue = %(queue)s AND id = ANY(%(ids)b::text [])
RETURNING place;

-- name: count_jobs
-- description: How many rows there are under a number of a queue.
SELECT count(*) FROM dt.jobs WHERE queue = %(queue)s;

-- name: some_jobs
-- description: Any jobs of a discarded queue.
SELECT id FROM dt.jobs WHERE queue = %(queue)s LIMIT %(limit)s;

-- name: delete_queue_jobs
-- description: All of a queue's jobs, where they are few.
WITH gone AS (
    DELETE FROM dt.bodies WHERE queue = %(queue)s
)

DELETE FROM dt.jobs WHERE queue = %(queue)s;

-- name: last_born
-- description: The highest born among the jobs that a queue holds; looks at each.
SELECT max(born) FROM dt.jobs WHERE queue = %(queue)s;
