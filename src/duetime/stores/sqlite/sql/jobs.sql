-- What verbs do to jobs. Hot statements take many ids, and answer many jobs, as one JSON array: the driver hands the
-- interpreter to other threads at every row, and may wait for it each time.

-- name: insert_job
-- description: A new incarnation waits. Positional, because it runs for hundreds of jobs a call.
INSERT INTO jobs (
    queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, reason, error,
    attributes, body
) VALUES (?, ?, ?, 0, ?, ?, ?, 0, 0, ?, 0, ?, '', '', ?, ?);

-- name: insert_body
-- description: A large body; the row of the job has its number.
INSERT INTO bodies (body) VALUES (?);

-- name: find_jobs
-- description: What the rules need to know about jobs by id; ids that are not there are passed over.
SELECT
    jobs.id, jobs.born, jobs.place, jobs.priority, jobs.due_at, jobs.expires_at, jobs.tries, jobs.used, jobs.attempt
FROM json_each(:ids) AS wanted
CROSS JOIN jobs ON jobs.queue = :queue AND jobs.id = wanted.value;

-- name: ready_jobs
-- description: What a consumer may get from one priority after (after_at, after_id), in order, without payloads.
SELECT json_group_array(
    json_array(
        id, born, due_at, expires_at, tries, used, attempt, error,
        size + coalesce(length(CAST(attributes AS BLOB)), 0)
    )
)
FROM (
    SELECT
        id, born, due_at, expires_at, tries, used, attempt, error, attributes,
        CASE typeof(body)
            WHEN 'integer' THEN (SELECT length(bodies.body) FROM bodies WHERE bodies.number = jobs.body)
            ELSE length(body)
        END AS size
    FROM jobs
    WHERE
        queue = :queue
        AND place = 0
        AND priority = :priority
        AND due_at <= :now
        AND (due_at, id) > (:after_at, :after_id)
    ORDER BY due_at, id
    LIMIT :limit
);

-- name: get_payloads
-- description: The bodies of jobs by id, in hexadecimal, and their attributes.
SELECT json_group_array(
    json_array(
        jobs.id,
        hex(CASE typeof(jobs.body)
                WHEN 'integer' THEN (SELECT bodies.body FROM bodies WHERE bodies.number = jobs.body)
                ELSE jobs.body
            END),
        jobs.attributes
    )
)
FROM json_each(:ids) AS wanted
CROSS JOIN jobs ON jobs.queue = :queue AND jobs.id = wanted.value;

-- name: count_held
-- description: How many of these leases (id, born, attempt) are held.
SELECT count(*)
FROM json_each(:leases) AS lease
CROSS JOIN jobs ON jobs.queue = :queue AND jobs.id = lease.value ->> 0
WHERE jobs.place = 1 AND jobs.born = lease.value ->> 1 AND jobs.attempt = lease.value ->> 2;

-- name: is_held
-- description: Whether a lease (queue, id, born, attempt) is held, as 1 or 0.
SELECT count(*) FROM jobs
WHERE queue = ? AND id = ? AND place = 1 AND born = ? AND attempt = ?;

-- name: move_job
-- description: Every other way from place to place. An error of null keeps the one that is there.
UPDATE jobs
SET
    place = :place,
    due_at = :due_at,
    expires_at = :expires_at,
    lease_until = :lease_until,
    dead_at = :dead_at,
    tries = :tries,
    used = :used,
    reason = :reason,
    error = coalesce(:error, error)
WHERE queue = :queue AND id = :id;

-- name: delete_jobs
-- description: The end of jobs in any place.
DELETE FROM jobs
WHERE queue = :queue AND id IN (SELECT value FROM json_each(:ids));

-- name: heads_of
-- description: The earliest due_at per priority of each queue that is not paused, for many queues.
SELECT
    asked.key,
    (SELECT min(due_at) FROM jobs WHERE queue = queues.id AND place = 0 AND priority = 1),
    (SELECT min(due_at) FROM jobs WHERE queue = queues.id AND place = 0 AND priority = 2),
    (SELECT min(due_at) FROM jobs WHERE queue = queues.id AND place = 0 AND priority = 3)
FROM json_each(:names) AS asked
LEFT JOIN queues
    ON queues.namespace = json_extract(asked.value, '$[0]') AND queues.name = json_extract(asked.value, '$[1]')
    AND queues.paused = 0;

-- name: counts_of
-- description: What queues hold and the earliest due_at per priority, for many queues; not how many are due.
SELECT
    asked.key,
    (SELECT min(due_at) FROM jobs WHERE queue = queues.id AND place = 0 AND priority = 1),
    (SELECT min(due_at) FROM jobs WHERE queue = queues.id AND place = 0 AND priority = 2),
    (SELECT min(due_at) FROM jobs WHERE queue = queues.id AND place = 0 AND priority = 3),
    (
        SELECT count(*) FROM jobs
        WHERE queue = queues.id AND place = 0 AND expires_at > 0 AND expires_at < :now
    ),
    (SELECT count(*) FROM jobs WHERE queue = -queues.id),
    queues.{queue_columns}, queues.today
FROM json_each(:names) AS asked
LEFT JOIN queues
    ON queues.namespace = json_extract(asked.value, '$[0]') AND queues.name = json_extract(asked.value, '$[1]');

-- name: get_jobs
-- description: Jobs as they are, by id.
SELECT
    jobs.id, jobs.born, jobs.place, jobs.priority, jobs.due_at, jobs.expires_at, jobs.lease_until, jobs.dead_at,
    jobs.tries, jobs.used, jobs.attempt, jobs.reason, jobs.error, jobs.attributes,
    CASE typeof(jobs.body)
        WHEN 'integer' THEN (SELECT bodies.body FROM bodies WHERE bodies.number = jobs.body)
        ELSE jobs.body
    END
FROM json_each(:ids) AS wanted
CROSS JOIN jobs ON jobs.queue = :queue AND jobs.id = wanted.value;

-- name: job_sizes
-- description: The bytes of jobs' payloads by id.
SELECT
    jobs.id,
    coalesce(
        CASE typeof(jobs.body)
            WHEN 'integer' THEN (SELECT length(bodies.body) FROM bodies WHERE bodies.number = jobs.body)
            ELSE length(CAST(jobs.body AS BLOB))
        END,
        0
    ) + coalesce(length(CAST(jobs.attributes AS BLOB)), 0)
FROM json_each(:ids) AS wanted
CROSS JOIN jobs ON jobs.queue = :queue AND jobs.id = wanted.value;

-- name: count_waiting
-- description: How many of one priority wait with first <= due_at < last; no more than the limit are counted.
SELECT count(*) FROM (
    SELECT 1 FROM jobs
    WHERE queue = :queue AND place = 0 AND priority = :priority AND due_at >= :first AND due_at < :last
    LIMIT :limit
);

-- name: set_aside_jobs
-- description: Rows that cannot be read as jobs leave their queue: the number of the queue is negative from now on.
UPDATE OR REPLACE jobs SET queue = -queue
WHERE queue = :queue AND id IN (SELECT value FROM json_each(:ids))
RETURNING place;

-- name: delete_queue_jobs
-- description: All of a queue's jobs, where they are few.
DELETE FROM jobs WHERE queue = :queue;
