-- Push of one job, reserve of one that may finish another before, and ack of one: each is one statement, which can be a
-- transaction by itself. A connection runs this script once. Then an INSERT into one of the views calls its trigger,
-- and the columns of the view are the arguments. `single_statement.py` has the statements. A trigger that finds a queue
-- or a job unusual changes nothing; then the verbs of `stores/sql` serve the call. What they leave behind for the usual
-- case is the same, column by column.

-- What the last push of this connection answered that changed more than two rows: its job's and its queue's.
CREATE TEMP TABLE pushed (
    one INTEGER PRIMARY KEY,
    born INTEGER NOT NULL,
    wakes INTEGER NOT NULL              -- the number of the announcement; 0 if the job is not the queue's earliest
);

-- What the last reserve of this connection answered, with the token of its call.
CREATE TEMP TABLE reserved (
    one INTEGER PRIMARY KEY,
    token INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    id TEXT,                            -- null: no job is ready
    born INTEGER,
    priority INTEGER,
    due_at INTEGER,
    expires_at INTEGER,
    tries INTEGER,
    used INTEGER,
    attempt INTEGER,
    error TEXT,
    attributes TEXT,
    body BLOB,
    next_at INTEGER
);

INSERT INTO pushed VALUES (1, 0, 0);

CREATE TEMP VIEW push_one AS SELECT
    NULL AS namespace, NULL AS name, NULL AS now, NULL AS day, NULL AS id, NULL AS priority, NULL AS due_at,
    NULL AS expires_at, NULL AS tries, NULL AS attributes, NULL AS body,
    NULL AS is_large;

CREATE TEMP TRIGGER push_one INSTEAD OF INSERT ON push_one
BEGIN
    INSERT OR IGNORE INTO jobs (
        queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, reason,
        error, attributes, body
    ) SELECT
        id, new.id,
        max(new.now, floor + 1),
        0, new.priority, new.due_at, new.expires_at, 0, 0, new.tries, 0, 0,
        '',
        '',
        new.attributes,
        CASE WHEN new.is_large THEN x'' ELSE new.body END
    FROM queues
    WHERE
        namespace = new.namespace
        AND name = new.name
        AND known = 1
        AND paused = 0
        AND max_jobs = 0
        AND max_body = 0
        AND offline = 0
        AND today = new.day;

    SELECT raise(IGNORE) WHERE changes() = 0;

    UPDATE queues
    SET
        floor = floor + (floor >= new.now),
        last_born = max(last_born, new.now, (floor + 1) * (floor >= new.now)),
        jobs = jobs + 1,
        today_accepted = today_accepted + 1
    WHERE namespace = new.namespace AND name = new.name;

    UPDATE queues
    SET reap_at = new.expires_at + 1
    WHERE
        new.expires_at > 0
        AND namespace = new.namespace
        AND name = new.name
        AND NOT (reap_at > 0 AND reap_at <= new.expires_at + 1);

    INSERT INTO bodies (body) SELECT new.body WHERE new.is_large;

    UPDATE jobs
    SET body = last_insert_rowid()
    WHERE
        new.is_large
        AND id = new.id
        AND queue = (SELECT queues.id FROM queues WHERE namespace = new.namespace AND name = new.name);

    -- The first of the two looks is enough for nearly every push: an earlier job of the same priority waits.
    UPDATE meta
    SET wakes = wakes + 1
    WHERE
        one = 1
        AND NOT EXISTS (
            SELECT 1 FROM jobs
            WHERE
                queue = (SELECT queues.id FROM queues WHERE namespace = new.namespace AND name = new.name)
                AND place = 0
                AND priority = new.priority
                AND due_at <= new.due_at
                AND id <> new.id
        )
        AND NOT EXISTS (
            SELECT 1 FROM jobs
            WHERE
                queue = (SELECT queues.id FROM queues WHERE namespace = new.namespace AND name = new.name)
                AND place = 0
                AND priority IN (1, 2, 3)
                AND due_at <= new.due_at
                AND id <> new.id
        );

    -- Nearly every push is as its caller expects, and needs no answer.
    UPDATE pushed
    SET
        wakes = CASE WHEN changes() = 1 THEN (SELECT meta.wakes FROM meta WHERE meta.one = 1) ELSE 0 END,
        born = (
            SELECT max(floor, new.now) FROM queues
            WHERE namespace = new.namespace AND name = new.name
        )
    WHERE
        changes() = 1
        OR new.expires_at > 0
        OR new.is_large
        OR new.now < (SELECT floor FROM queues WHERE namespace = new.namespace AND name = new.name);
END;

CREATE TEMP VIEW reserve_one AS SELECT
    NULL AS token, NULL AS namespace, NULL AS name, NULL AS now, NULL AS day,
    NULL AS first_priority,             -- whose turn it is; 0 for none
    NULL AS lease_until,
    NULL AS id,                         -- a leased job that is finished before; null for none
    NULL AS born, NULL AS attempt,
    NULL AS idle_ms;

CREATE TEMP TRIGGER reserve_one INSTEAD OF INSERT ON reserve_one
BEGIN
    DELETE FROM jobs
    WHERE
        new.id IS NOT NULL
        AND queue = (
            SELECT queues.id FROM queues
            WHERE namespace = new.namespace AND name = new.name AND today = new.day
        )
        AND id = new.id
        AND place = 1
        AND born = new.born
        AND attempt = new.attempt;

    SELECT raise(IGNORE) WHERE new.id IS NOT NULL AND changes() = 0;

    INSERT OR REPLACE INTO reserved
    SELECT
        1, new.token, found.queue, jobs.id, jobs.born, jobs.priority, jobs.due_at, jobs.expires_at, jobs.tries,
        jobs.used + 1,
        jobs.attempt + 1,
        jobs.error, jobs.attributes,
        CASE typeof(jobs.body)
            WHEN 'integer' THEN coalesce((SELECT bodies.body FROM bodies WHERE bodies.number = jobs.body), x'')
            ELSE jobs.body
        END,
        NULL
    FROM (
        SELECT
            queues.id AS queue,
            coalesce(
                (
                    SELECT jobs.id FROM jobs
                    WHERE
                        jobs.queue = queues.id AND place = 0 AND priority = new.first_priority AND due_at <= new.now
                        AND queues.strict = 0
                    ORDER BY due_at, jobs.id
                    LIMIT 1
                ),
                (
                    SELECT jobs.id FROM jobs
                    WHERE jobs.queue = queues.id AND place = 0 AND priority = 1 AND due_at <= new.now
                    ORDER BY due_at, jobs.id
                    LIMIT 1
                ),
                (
                    SELECT jobs.id FROM jobs
                    WHERE jobs.queue = queues.id AND place = 0 AND priority = 2 AND due_at <= new.now
                    ORDER BY due_at, jobs.id
                    LIMIT 1
                ),
                (
                    SELECT jobs.id FROM jobs
                    WHERE jobs.queue = queues.id AND place = 0 AND priority = 3 AND due_at <= new.now
                    ORDER BY due_at, jobs.id
                    LIMIT 1
                )
            ) AS id
        FROM queues
        WHERE
            queues.namespace = new.namespace
            AND queues.name = new.name
            AND queues.paused = 0
            AND queues.today = new.day
    ) AS found
    LEFT JOIN jobs ON jobs.queue = found.queue AND jobs.id = found.id
    -- A job that has expired or whose row is damaged is dealt with by the verb.
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
            AND (jobs.expires_at = 0 OR jobs.expires_at >= new.now)
        );

    -- An error undoes the whole statement, and nothing less than that undoes the end of the other job.
    SELECT raise(ABORT, 'unusual') WHERE changes() = 0;

    UPDATE jobs
    SET
        place = 1,
        lease_until = new.lease_until,
        used = used + 1,
        attempt = attempt + 1
    WHERE
        queue = (SELECT reserved.queue FROM reserved)
        AND id = (SELECT reserved.id FROM reserved);

    UPDATE queues
    SET
        floor = max(floor, ifnull(new.born, floor)),
        last_born = CASE WHEN jobs = 1 AND new.id IS NOT NULL THEN max(last_born, new.now) ELSE last_born END,
        jobs = jobs - (new.id IS NOT NULL),
        leased = leased + changes() - (new.id IS NOT NULL),
        today_delivered = today_delivered + changes(),
        today_acked = today_acked + (new.id IS NOT NULL)
    WHERE id = (SELECT reserved.queue FROM reserved) AND (changes() = 1 OR new.id IS NOT NULL);

    UPDATE queues
    SET reap_at = new.lease_until
    WHERE
        id = (SELECT reserved.queue FROM reserved WHERE reserved.id IS NOT NULL)
        AND NOT (reap_at > 0 AND reap_at <= new.lease_until);

    -- The queue is forgotten some time after its last job, unless it has rules.
    UPDATE queues
    SET reap_at = last_born + new.idle_ms
    WHERE
        new.id IS NOT NULL
        AND id = (SELECT reserved.queue FROM reserved WHERE reserved.id IS NULL)
        AND jobs = 0
        AND known = 1
        AND max(paused, strict, expired_to_dead, max_jobs, max_body, kept, offline) = 0
        AND NOT (reap_at > 0 AND reap_at <= last_born + new.idle_ms);

    UPDATE reserved
    SET
        next_at = nullif(               -- 1e15 is later than any due_at
            min(
                ifnull(
                    (SELECT min(due_at) FROM jobs WHERE queue = reserved.queue AND priority = 1 AND place = 0), 1e15
                ),
                ifnull(
                    (SELECT min(due_at) FROM jobs WHERE queue = reserved.queue AND priority = 2 AND place = 0), 1e15
                ),
                ifnull(
                    (SELECT min(due_at) FROM jobs WHERE queue = reserved.queue AND priority = 3 AND place = 0), 1e15
                )
            ),
            1e15
        );
END;

CREATE TEMP VIEW ack_one AS SELECT
    NULL AS namespace, NULL AS name, NULL AS now, NULL AS day, NULL AS id, NULL AS born, NULL AS attempt,
    NULL AS idle_ms;

CREATE TEMP TRIGGER ack_one INSTEAD OF INSERT ON ack_one
BEGIN
    DELETE FROM jobs
    WHERE
        queue = (
            SELECT queues.id FROM queues
            WHERE namespace = new.namespace AND name = new.name AND today = new.day
        )
        AND id = new.id
        AND place = 1
        AND born = new.born
        AND attempt = new.attempt;

    UPDATE queues
    SET
        floor = max(floor, new.born),
        last_born = CASE WHEN jobs = 1 THEN max(last_born, new.now) ELSE last_born END,
        jobs = jobs - 1,
        leased = leased - 1,
        today_acked = today_acked + 1
    WHERE changes() = 1 AND namespace = new.namespace AND name = new.name;

    -- The queue is forgotten some time after its last job, unless it has rules.
    UPDATE queues
    SET reap_at = last_born + new.idle_ms
    WHERE
        changes() = 1
        AND namespace = new.namespace
        AND name = new.name
        AND jobs = 0
        AND known = 1
        AND max(paused, strict, expired_to_dead, max_jobs, max_body, kept, offline) = 0
        AND NOT (reap_at > 0 AND reap_at <= last_born + new.idle_ms);
END;
