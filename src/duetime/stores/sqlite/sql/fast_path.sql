-- Push, reserve and ack of one job without rules, limits or anything else unusual: a few statements each, which read
-- nothing that they do not need (`SqliteStep`). They leave the same rows behind as the verbs of `stores/sql`.

-- name: find_plain_queue
-- description: No row if the queue is unusual.
SELECT id, floor
FROM queues
WHERE
    namespace = ?
    AND name = ?
    AND today = ?
    AND known = 1
    AND paused = 0
    AND max_jobs = 0
    AND max_body = 0
    AND offline = 0;

-- name: push_plain_job
-- description: No change if the id exists. A body of null is large and gets the number that insert_body will give.
INSERT OR IGNORE INTO jobs (
    queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, reason, error,
    attributes, body
)
VALUES (
    ?, ?, ?, 0, ?, ?, ?, 0, 0, ?, 0, 0, '', '', ?,
    coalesce(?, (SELECT coalesce(max(number), 0) + 1 FROM bodies))
);

-- name: count_plain_push
-- description: What a push changes in its queue. `reap_by` is 0 if the job does not expire.
UPDATE queues
SET
    floor = CASE WHEN :born > :now THEN :born ELSE floor END,
    last_born = max(last_born, :born),
    jobs = jobs + 1,
    today_accepted = today_accepted + 1,
    reap_at = CASE WHEN :reap_by = 0 OR reap_at BETWEEN 1 AND :reap_by THEN reap_at ELSE :reap_by END
WHERE id = :queue;

-- name: has_earlier
-- description: Whether a job other than `id` waits that is due by `due_at`.
SELECT
    EXISTS (SELECT 1 FROM jobs WHERE queue = :queue AND place = 0 AND priority = 1 AND due_at <= :due_at AND id <> :id)
    OR EXISTS (
        SELECT 1 FROM jobs WHERE queue = :queue AND place = 0 AND priority = 2 AND due_at <= :due_at AND id <> :id
    )
    OR EXISTS (
        SELECT 1 FROM jobs WHERE queue = :queue AND place = 0 AND priority = 3 AND due_at <= :due_at AND id <> :id
    );

-- name: next_plain_job
-- description: No row if the queue is unusual, or its next job has expired or is damaged; an id of null if none is ready.
SELECT
    found.queue, jobs.id, jobs.born, jobs.attempt + 1,
    CASE typeof(jobs.body)
        WHEN 'integer' THEN coalesce((SELECT bodies.body FROM bodies WHERE bodies.number = jobs.body), x'')
        ELSE jobs.body
    END,
    jobs.due_at, jobs.priority, jobs.tries, jobs.used + 1, jobs.expires_at, jobs.attributes, jobs.error
FROM (
    SELECT
        queues.id AS queue,
        coalesce(
            (
                SELECT jobs.id FROM jobs
                WHERE
                    jobs.queue = queues.id AND place = 0 AND priority = :first_priority AND due_at <= :now
                    AND queues.strict = 0
                ORDER BY due_at, jobs.id
                LIMIT 1
            ),
            (
                SELECT jobs.id FROM jobs
                WHERE jobs.queue = queues.id AND place = 0 AND priority = 1 AND due_at <= :now
                ORDER BY due_at, jobs.id
                LIMIT 1
            ),
            (
                SELECT jobs.id FROM jobs
                WHERE jobs.queue = queues.id AND place = 0 AND priority = 2 AND due_at <= :now
                ORDER BY due_at, jobs.id
                LIMIT 1
            ),
            (
                SELECT jobs.id FROM jobs
                WHERE jobs.queue = queues.id AND place = 0 AND priority = 3 AND due_at <= :now
                ORDER BY due_at, jobs.id
                LIMIT 1
            )
        ) AS id
    FROM queues
    WHERE queues.namespace = :namespace AND queues.name = :name AND queues.paused = 0 AND queues.today = :day
) AS found
LEFT JOIN jobs ON jobs.queue = found.queue AND jobs.id = found.id
WHERE
    found.id IS NULL
    OR (
        typeof(jobs.id) = 'text'
        AND typeof(jobs.born) = 'integer'
        AND typeof(jobs.due_at) = 'integer'
        AND typeof(jobs.expires_at) = 'integer'
        AND typeof(jobs.tries) = 'integer'
        AND typeof(jobs.used) = 'integer'
        AND typeof(jobs.attempt) = 'integer'
        AND typeof(jobs.error) = 'text'
        AND typeof(jobs.attributes) IN ('text', 'null')
        AND typeof(jobs.body) IN ('blob', 'integer')
        AND (jobs.expires_at = 0 OR jobs.expires_at >= :now)
    );

-- name: count_plain_lease
-- description: What a lease changes in its queue.
UPDATE queues
SET
    leased = leased + 1,
    today_delivered = today_delivered + 1,
    reap_at = CASE WHEN reap_at BETWEEN 1 AND :lease_until THEN reap_at ELSE :lease_until END
WHERE id = :queue;

-- name: delete_leased_job
-- description: The end of a job whose lease is held, unless the queue's totals are those of another day.
DELETE FROM jobs
WHERE
    queue = (SELECT queues.id FROM queues WHERE namespace = :namespace AND name = :name AND today = :day)
    AND id = :id
    AND place = 1
    AND born = :born
    AND attempt = :attempt;

-- name: count_plain_ack
-- description: What an ack changes in its queue. One without rules is forgotten `idle_ms` after its last job.
UPDATE queues
SET
    floor = max(floor, :born),
    last_born = CASE WHEN jobs = 1 THEN max(last_born, :now) ELSE last_born END,
    jobs = jobs - 1,
    leased = leased - 1,
    today_acked = today_acked + 1,
    reap_at = CASE
        WHEN
            jobs = 1
            AND known = 1
            AND max(paused, strict, expired_to_dead, max_jobs, max_body, kept, offline) = 0
            AND NOT reap_at BETWEEN 1 AND max(last_born, :now) + :idle_ms
            THEN max(last_born, :now) + :idle_ms
        ELSE reap_at
    END
WHERE namespace = :namespace AND name = :name;
