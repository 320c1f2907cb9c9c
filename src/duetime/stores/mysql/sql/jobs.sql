-- What verbs do to jobs. The row of their queue is always locked first. So plain reads are enough here, and no job is
-- locked by two transactions. Every statement names its index: otherwise all of a small table would be read and locked.

-- name: insert_jobs
-- description: New incarnations wait. The driver repeats the values for many rows.
INSERT INTO dt.jobs (
    queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, size, reason,
    error
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: insert_bodies
-- description: Their payloads.
INSERT INTO dt.bodies (queue, id, attributes, body) VALUES (%s, %s, %s, %s);

-- name: find_jobs
-- description: What the rules need to know about jobs by id; ids that are not there are passed over.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs FORCE INDEX (PRIMARY)
WHERE queue = %(queue)s AND id IN %(ids)s;

-- name: ready_jobs
-- description: What a consumer may get from one priority after (after_at, after_id), in order, without payloads.
SELECT id, born, due_at, expires_at, tries, used, attempt, error, size
FROM dt.jobs FORCE INDEX (by_due)
WHERE
    queue = %(queue)s
    AND place = 0
    AND priority = %(priority)s
    AND ((due_at > %(after_at)s AND due_at <= %(now)s) OR (due_at = %(after_at)s AND id > %(after_id)s))
ORDER BY due_at, id
LIMIT %(limit)s;

-- name: ready_ahead
-- description: The first jobs that a consumer may get from each priority, in order. A now of null is the clock.
(
    SELECT 1 AS priority, id, born, due_at, expires_at, tries, used, attempt, error, size
    FROM dt.jobs FORCE INDEX (by_due)
    WHERE
        queue = %(queue)s
        AND place = 0
        AND priority = 1
        AND due_at <= coalesce(%(now)s, CAST(floor(unix_timestamp(now(3)) * 1000) AS SIGNED))
    ORDER BY due_at, id
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT 2 AS priority, id, born, due_at, expires_at, tries, used, attempt, error, size
    FROM dt.jobs FORCE INDEX (by_due)
    WHERE
        queue = %(queue)s
        AND place = 0
        AND priority = 2
        AND due_at <= coalesce(%(now)s, CAST(floor(unix_timestamp(now(3)) * 1000) AS SIGNED))
    ORDER BY due_at, id
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT 3 AS priority, id, born, due_at, expires_at, tries, used, attempt, error, size
    FROM dt.jobs FORCE INDEX (by_due)
    WHERE
        queue = %(queue)s
        AND place = 0
        AND priority = 3
        AND due_at <= coalesce(%(now)s, CAST(floor(unix_timestamp(now(3)) * 1000) AS SIGNED))
    ORDER BY due_at, id
    LIMIT %(limit)s
);

-- name: get_payloads
-- description: The bodies of jobs by id, and their attributes.
SELECT id, body, attributes
FROM dt.bodies FORCE INDEX (PRIMARY)
WHERE queue = %(queue)s AND id IN %(ids)s;

-- name: count_held
-- description: How many of these leases (id, born, attempt) are held.
SELECT count(*)
FROM dt.jobs FORCE INDEX (PRIMARY)
WHERE queue = %(queue)s AND id IN %(ids)s AND place = 1 AND (id, born, attempt) IN %(leases)s;

-- name: move_jobs
-- description: Every other way from place to place, for jobs given as JSON. An error of null keeps the one that is there.
UPDATE json_table(%(jobs)s, '$[*]' COLUMNS (
    id varchar(255) CHARACTER SET utf8mb4 PATH '$.id',
    place bigint PATH '$.place',
    due_at bigint PATH '$.due_at',
    expires_at bigint PATH '$.expires_at',
    lease_until bigint PATH '$.lease_until',
    dead_at bigint PATH '$.dead_at',
    tries bigint PATH '$.tries',
    used bigint PATH '$.used',
    reason varchar(255) CHARACTER SET utf8mb4 PATH '$.reason',
    error mediumtext CHARACTER SET utf8mb4 PATH '$.error'
)) AS moved
STRAIGHT_JOIN dt.jobs AS j FORCE INDEX (PRIMARY) ON j.queue = %(queue)s AND j.id = moved.id
SET
    j.place = moved.place,
    j.due_at = moved.due_at,
    j.expires_at = moved.expires_at,
    j.lease_until = moved.lease_until,
    j.dead_at = moved.dead_at,
    j.tries = moved.tries,
    j.used = moved.used,
    j.reason = moved.reason,
    j.error = coalesce(moved.error, j.error);

-- name: delete_jobs
-- description: The end of jobs in any place.
DELETE b FROM dt.bodies AS b FORCE INDEX (PRIMARY) WHERE b.queue = %(queue)s AND b.id IN %(ids)s;

DELETE j FROM dt.jobs AS j FORCE INDEX (PRIMARY) WHERE j.queue = %(queue)s AND j.id IN %(ids)s;

-- name: lapsed_jobs
-- description: Leases that ran out, earliest first.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs FORCE INDEX (by_turn)
WHERE queue = %(queue)s AND place = 1 AND turn_at <= %(now)s
ORDER BY turn_at, id
LIMIT %(limit)s;

-- name: expired_jobs
-- description: Waiting jobs past their time, earliest first.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs FORCE INDEX (by_turn)
WHERE queue = %(queue)s AND place = 0 AND turn_at > 0 AND turn_at < %(now)s
ORDER BY turn_at, id
LIMIT %(limit)s;

-- name: longest_dead
-- description: The next dead letters to respawn.
SELECT id, born, place, priority, due_at, expires_at, tries, used, attempt
FROM dt.jobs FORCE INDEX (by_turn)
WHERE queue = %(queue)s AND place = 2
ORDER BY turn_at, id
LIMIT %(limit)s;

-- name: next_lapse
-- description: When the queue's next lease runs out.
SELECT min(turn_at) FROM dt.jobs FORCE INDEX (by_turn) WHERE queue = %(queue)s AND place = 1;

-- name: next_expiry
-- description: When the queue's next waiting job expires.
SELECT min(turn_at) FROM dt.jobs FORCE INDEX (by_turn) WHERE queue = %(queue)s AND place = 0 AND turn_at > 0;

-- name: heads_of
-- description: The earliest due_at by priority of each queue that is not paused, for many queues.
SELECT
    asked.position,
    (
        SELECT due_at FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = q.id AND place = 0 AND priority = 1 ORDER BY due_at LIMIT 1
    ),
    (
        SELECT due_at FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = q.id AND place = 0 AND priority = 2 ORDER BY due_at LIMIT 1
    ),
    (
        SELECT due_at FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = q.id AND place = 0 AND priority = 3 ORDER BY due_at LIMIT 1
    )
FROM json_table(%(queues)s, '$[*]' COLUMNS (
    position FOR ORDINALITY,
    namespace varchar(255) CHARACTER SET utf8mb4 PATH '$[0]',
    name varchar(255) CHARACTER SET utf8mb4 PATH '$[1]'
)) AS asked
STRAIGHT_JOIN dt.queues AS q FORCE INDEX (by_name)
    ON q.namespace = asked.namespace AND q.name = asked.name AND q.paused = 0;

-- name: queues_of
-- description: Rows of queues, the earliest due_at of each priority, and how many damaged rows there are.
SELECT
    asked.position, q.{queue_columns},
    (
        SELECT due_at FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = q.id AND place = 0 AND priority = 1 ORDER BY due_at LIMIT 1
    ),
    (
        SELECT due_at FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = q.id AND place = 0 AND priority = 2 ORDER BY due_at LIMIT 1
    ),
    (
        SELECT due_at FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = q.id AND place = 0 AND priority = 3 ORDER BY due_at LIMIT 1
    ),
    (SELECT count(*) FROM dt.jobs FORCE INDEX (PRIMARY) WHERE queue = -q.id)
FROM json_table(%(queues)s, '$[*]' COLUMNS (
    position FOR ORDINALITY,
    namespace varchar(255) CHARACTER SET utf8mb4 PATH '$[0]',
    name varchar(255) CHARACTER SET utf8mb4 PATH '$[1]'
)) AS asked
STRAIGHT_JOIN dt.queues AS q FORCE INDEX (by_name)
    ON q.namespace = asked.namespace AND q.name = asked.name;

-- name: count_due
-- description: How many jobs of a queue are due, and how many of these are past their time.
SELECT
    (
        SELECT count(*) FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = %(queue)s AND place = 0 AND priority = 1 AND due_at <= %(now)s
    )
    + (
        SELECT count(*) FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = %(queue)s AND place = 0 AND priority = 2 AND due_at <= %(now)s
    )
    + (
        SELECT count(*) FROM dt.jobs FORCE INDEX (by_due)
        WHERE queue = %(queue)s AND place = 0 AND priority = 3 AND due_at <= %(now)s
    ),
    (
        SELECT count(*) FROM dt.jobs FORCE INDEX (by_turn)
        WHERE queue = %(queue)s AND place = 0 AND turn_at > 0 AND turn_at < %(now)s
    );

-- name: get_jobs
-- description: Jobs as they are, by id.
SELECT
    j.id, j.born, j.place, j.priority, j.due_at, j.expires_at, j.lease_until, j.dead_at, j.tries, j.used, j.attempt,
    j.reason, j.error, b.attributes, b.body
FROM dt.jobs AS j FORCE INDEX (PRIMARY)
STRAIGHT_JOIN dt.bodies AS b FORCE INDEX (PRIMARY) ON b.queue = j.queue AND b.id = j.id
WHERE j.queue = %(queue)s AND j.id IN %(ids)s;

-- name: job_sizes
-- description: The bytes of jobs' payloads by id.
SELECT id, size
FROM dt.jobs FORCE INDEX (PRIMARY)
WHERE queue = %(queue)s AND id IN %(ids)s;

-- name: list_waiting
-- description: Keys of one priority's waiting jobs after (after_at, after_id), due by last and not expired at alive_at.
SELECT due_at, id
FROM dt.jobs FORCE INDEX (by_due)
WHERE
    queue = %(queue)s
    AND place = 0
    AND priority = %(priority)s
    AND ((due_at > %(after_at)s AND due_at <= %(last)s) OR (due_at = %(after_at)s AND id > %(after_id)s))
    AND due_at <= %(last)s
    AND (expires_at = 0 OR expires_at >= %(alive_at)s)
ORDER BY due_at, id
LIMIT %(limit)s;

-- name: list_leased
-- description: Keys of leased jobs after (after_at, after_id).
SELECT turn_at, id
FROM dt.jobs FORCE INDEX (by_turn)
WHERE
    queue = %(queue)s
    AND place = 1
    AND (turn_at > %(after_at)s OR (turn_at = %(after_at)s AND id > %(after_id)s))
ORDER BY turn_at, id
LIMIT %(limit)s;

-- name: list_dead
-- description: Keys of dead jobs after (after_at, after_id).
SELECT turn_at, id
FROM dt.jobs FORCE INDEX (by_turn)
WHERE
    queue = %(queue)s
    AND place = 2
    AND (turn_at > %(after_at)s OR (turn_at = %(after_at)s AND id > %(after_id)s))
ORDER BY turn_at, id
LIMIT %(limit)s;

-- name: set_aside_jobs
-- description: Rows that cannot be read as jobs leave their queue: the number of the queue is negative from now on.
SELECT place FROM dt.jobs FORCE INDEX (PRIMARY) WHERE queue = %(queue)s AND id IN %(ids)s;

UPDATE dt.jobs FORCE INDEX (PRIMARY) SET queue = -queue WHERE queue = %(queue)s AND id IN %(ids)s;

-- name: delete_queue_jobs
-- description: All of a queue's jobs, where they are few.
DELETE b FROM dt.bodies AS b FORCE INDEX (PRIMARY) WHERE b.queue = %(queue)s;

DELETE j FROM dt.jobs AS j FORCE INDEX (PRIMARY) WHERE j.queue = %(queue)s;
