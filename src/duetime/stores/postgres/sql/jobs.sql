-- What verbs do to jobs. The row of their queue is always locked first.
--
-- A plan is made once per session, often while the tables are still empty, and must be right when they are full. So no
-- statement leaves PostgreSQL a choice: jobs by id are sought one by one (`LATERAL ... LIMIT 1`), because for
-- `id = ANY(...)` it may decide to read the whole queue; and the earliest is the first in order, because for `min` it
-- may decide to read all. Rows are then changed by their `ctid`: the lock keeps others from moving them.

-- name: insert_jobs
-- description: New incarnations wait; columns of the same length, one statement for any number of jobs.
INSERT INTO dt.jobs (
    queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, size, reason,
    error
)
SELECT
    %(queue)s, new.id, new.born, 0, new.priority, new.due_at, new.expires_at, 0, 0, new.tries, 0, new.attempt,
    new.size,
    '',
    ''
FROM unnest(
    %(ids)b::text [],
    %(borns)b::bigint [],
    %(priorities)b::bigint [],
    %(due_ats)b::bigint [],
    %(expires_ats)b::bigint [],
    %(tries)b::bigint [],
    %(attempts)b::bigint [],
    %(sizes)b::bigint []
) AS new (id, born, priority, due_at, expires_at, tries, attempt, size);

-- name: insert_bodies
-- description: Their payloads.
INSERT INTO dt.bodies (queue, id, attributes, body)
SELECT %(queue)s, new.id, new.attributes, new.body
FROM unnest(%(ids)b::text [], %(attributes)b::text [], %(bodies)b::bytea []) AS new (id, attributes, body);

-- name: find_jobs
-- description: What the rules need to know about jobs by id; ids that are not there are passed over.
SELECT j.id, j.born, j.place, j.priority, j.due_at, j.expires_at, j.tries, j.used, j.attempt
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
    FROM dt.jobs
    WHERE queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS j;

-- name: ready_jobs
-- description: What a consumer may get from one priority after (after_at, after_id), in order, without payloads.
SELECT id, born, due_at, expires_at, tries, used, attempt, error, size
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
-- description: The first jobs that a consumer may get from each priority, in order. A now of null is the clock.
SELECT p.priority, j.id, j.born, j.due_at, j.expires_at, j.tries, j.used, j.attempt, j.error, j.size
FROM (VALUES (1::smallint), (2::smallint), (3::smallint)) AS p (priority)
CROSS JOIN LATERAL (
    SELECT id, born, due_at, expires_at, tries, used, attempt, error, size
    FROM dt.jobs
    WHERE
        queue = %(queue)s
        AND place = 0
        AND priority = p.priority
        AND due_at <= (SELECT coalesce(%(now)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint))
    ORDER BY due_at, id
    LIMIT %(limit)s
) AS j;

-- name: get_payloads
-- description: The bodies of jobs by id, and their attributes.
SELECT wanted.id, b.body, b.attributes
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT body, attributes
    FROM dt.bodies
    WHERE queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS b;

-- name: lease_jobs
-- description: waiting -> leased, one more delivery each.
UPDATE dt.jobs
SET
    place = 1,
    lease_until = %(lease_until)s,
    used = used + 1,
    attempt = attempt + 1
WHERE ctid = ANY(ARRAY(
    SELECT found.ctid
    FROM unnest(%(ids)b::text []) AS wanted (id)
    CROSS JOIN LATERAL (SELECT ctid FROM dt.jobs WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS found
));

-- name: count_held
-- description: How many of these leases (id, born, attempt) are held.
SELECT count(*)
FROM unnest(%(ids)b::text [], %(borns)b::bigint [], %(attempts)b::bigint []) AS lease (id, born, attempt)
CROSS JOIN LATERAL (
    SELECT place, born, attempt
    FROM dt.jobs
    WHERE queue = %(queue)s AND id = lease.id
    LIMIT 1
) AS j
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
CROSS JOIN LATERAL (SELECT ctid FROM dt.jobs WHERE queue = %(queue)s AND id = moved.id LIMIT 1) AS found
WHERE j.ctid = found.ctid;

-- name: delete_jobs
-- description: The end of jobs in any place.
WITH gone AS (
    DELETE FROM dt.bodies
    WHERE ctid = ANY(ARRAY(
        SELECT found.ctid
        FROM unnest(%(ids)b::text []) AS wanted (id)
        CROSS JOIN LATERAL (SELECT ctid FROM dt.bodies WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS found
    ))
)

DELETE FROM dt.jobs
WHERE ctid = ANY(ARRAY(
    SELECT found.ctid
    FROM unnest(%(ids)b::text []) AS wanted (id)
    CROSS JOIN LATERAL (SELECT ctid FROM dt.jobs WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS found
));

-- name: heads
-- description: The earliest due_at per priority; three seeks instead of an index without the priority.
SELECT
    (SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 1 ORDER BY due_at LIMIT 1),
    (SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 2 ORDER BY due_at LIMIT 1),
    (SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 3 ORDER BY due_at LIMIT 1);

-- name: heads_of
-- description: The earliest due_at of each queue that is not paused, for many queues.
SELECT
    least(
        (SELECT due_at FROM dt.jobs WHERE queue = q.id AND place = 0 AND priority = 1 ORDER BY due_at LIMIT 1),
        (SELECT due_at FROM dt.jobs WHERE queue = q.id AND place = 0 AND priority = 2 ORDER BY due_at LIMIT 1),
        (SELECT due_at FROM dt.jobs WHERE queue = q.id AND place = 0 AND priority = 3 ORDER BY due_at LIMIT 1)
    )
FROM unnest(%(namespaces)b::text [], %(names)b::text []) WITH ORDINALITY AS asked (namespace, name, position)
LEFT JOIN dt.queues AS q ON q.namespace = asked.namespace AND q.name = asked.name AND q.paused = 0
ORDER BY asked.position;

-- name: counts_of
-- description: What queues hold, for many queues. Of one without waiting jobs no job is read, but damaged rows.
SELECT
    asked.position, q.{queue_columns},
    CASE WHEN q.jobs > q.leased + q.dead THEN
        (
            SELECT count(*) FROM dt.jobs
            WHERE queue = q.id AND place = 0 AND priority = 1 AND due_at <= %(now)s
        )
        + (
            SELECT count(*) FROM dt.jobs
            WHERE queue = q.id AND place = 0 AND priority = 2 AND due_at <= %(now)s
        )
        + (
            SELECT count(*) FROM dt.jobs
            WHERE queue = q.id AND place = 0 AND priority = 3 AND due_at <= %(now)s
        )
    ELSE 0 END,
    CASE WHEN q.jobs > q.leased + q.dead THEN
        (SELECT count(*) FROM dt.jobs WHERE queue = q.id AND place = 0 AND expires_at > 0 AND expires_at < %(now)s)
    ELSE 0 END,
    (SELECT count(*) FROM dt.jobs WHERE queue = -q.id)
FROM unnest(%(namespaces)b::text [], %(names)b::text []) WITH ORDINALITY AS asked (namespace, name, position)
INNER JOIN dt.queues AS q ON q.namespace = asked.namespace AND q.name = asked.name;

-- name: get_jobs
-- description: Jobs as they are, by id.
SELECT
    j.id, j.born, j.place, j.priority, j.due_at, j.expires_at, j.lease_until, j.dead_at, j.tries, j.used, j.attempt,
    j.reason, j.error, b.attributes, b.body
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, reason, error
    FROM dt.jobs
    WHERE queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS j
CROSS JOIN LATERAL (
    SELECT attributes, body
    FROM dt.bodies
    WHERE queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS b;

-- name: job_sizes
-- description: The bytes of jobs' payloads by id.
SELECT wanted.id, j.size
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (SELECT size FROM dt.jobs WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS j;

-- name: set_aside_jobs
-- description: Rows that cannot be read as jobs leave their queue: the number of the queue is negative from now on.
UPDATE dt.jobs SET queue = -queue
WHERE ctid = ANY(ARRAY(
    SELECT found.ctid
    FROM unnest(%(ids)b::text []) AS wanted (id)
    CROSS JOIN LATERAL (SELECT ctid FROM dt.jobs WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS found
))
RETURNING place;

-- name: delete_queue_jobs
-- description: All of a queue's jobs, where they are few.
WITH gone AS (
    DELETE FROM dt.bodies WHERE queue = %(queue)s
)

DELETE FROM dt.jobs WHERE queue = %(queue)s;
