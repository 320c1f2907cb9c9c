-- Whole verbs in one statement each, for the usual case: `lock_queue_by_id` and one of them travel with the begin and
-- the commit, so that the verb takes one round trip (`single_statement.py`). Each checks first whether the case is
-- usual. If it is not, the statement changes nothing and answers no row, and the verb runs step by step. A now of null is the
-- clock.

-- name: lock_queue_by_id
-- description: Nobody else changes the queue until the transaction ends. The next statement sees what others committed.
SELECT 1 FROM dt.queues WHERE id = %(queue)s FOR UPDATE;

-- Its conditions contain every rule of the queue that can refuse a push. A list whose values are all the same has only
-- the first of them: unnest answers null after the end of a list. Ids of one moment
-- are not sought one by one if the queue holds nothing between the least and the greatest of them.
-- name: push_single_statement
-- description: New jobs into a queue that holds none of their ids and has room. Answers now, paused and the old heads.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint) AS now
),

changed AS (
    UPDATE dt.queues AS q
    SET
        known = 1,
        last_born = greatest(q.last_born, clock.now),
        jobs = q.jobs + %(count)s,
        reap_at = CASE
            WHEN %(ttl)s = 0 OR q.reap_at BETWEEN 1 AND clock.now + %(ttl)s + 1 THEN q.reap_at
            ELSE clock.now + %(ttl)s + 1
        END
    FROM clock
    WHERE
        q.id = %(queue)s
        AND q.floor < clock.now
        AND q.offline = 0
        AND (q.max_jobs = 0 OR q.jobs + %(count)s <= q.max_jobs)
        AND (q.max_body = 0 OR q.max_body >= %(largest)s)
        AND (
            (
                %(of_one_moment)s = 1
                AND NOT EXISTS (
                    SELECT 1 FROM dt.jobs WHERE queue = %(queue)s AND id BETWEEN %(least)s AND %(greatest)s
                )
            )
            OR NOT EXISTS (
                SELECT 1
                FROM unnest(%(ids)b::text []) AS wanted (id)
                CROSS JOIN LATERAL (SELECT 1 FROM dt.jobs WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS found
            )
        )
    RETURNING q.namespace, q.name, q.paused, clock.now
),

new_jobs AS (
    INSERT INTO dt.jobs (
        queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, size,
        reason, error
    )
    SELECT
        %(queue)s, new.id, changed.now, 0,
        coalesce(new.priority, first.priority),
        coalesce(new.due_at, first.due_at) + coalesce(new.relative, first.relative) * changed.now,
        CASE coalesce(new.ttl_ms, first.ttl_ms) WHEN 0 THEN 0 ELSE changed.now + coalesce(new.ttl_ms, first.ttl_ms) END,
        0, 0,
        coalesce(new.tries, first.tries),
        0,
        coalesce(new.attempt, first.attempt),
        coalesce(new.size, first.size),
        '',
        ''
    FROM changed
    CROSS JOIN
        unnest(
            %(ids)b::text [],
            %(priorities)b::bigint [],
            %(due_ats)b::bigint [],
            %(relatives)b::bigint [],
            %(ttls)b::bigint [],
            %(tries)b::bigint [],
            %(attempts)b::bigint [],
            %(sizes)b::bigint []
        ) AS new (id, priority, due_at, relative, ttl_ms, tries, attempt, size)
    CROSS JOIN (
        SELECT
            (%(priorities)b::bigint [])[1] AS priority,
            (%(due_ats)b::bigint [])[1] AS due_at,
            (%(relatives)b::bigint [])[1] AS relative,
            (%(ttls)b::bigint [])[1] AS ttl_ms,
            (%(tries)b::bigint [])[1] AS tries,
            (%(attempts)b::bigint [])[1] AS attempt,
            (%(sizes)b::bigint [])[1] AS size
    ) AS first
),

new_bodies AS (
    INSERT INTO dt.bodies (queue, id, attributes, body)
    SELECT
        %(queue)s, new.id,
        coalesce(new.attributes, (%(attributes)b::text [])[1]),
        new.body
    FROM changed
    CROSS JOIN unnest(%(ids)b::text [], %(attributes)b::text [], %(bodies)b::bytea []) AS new (id, attributes, body)
),

counted AS (
    INSERT INTO dt.totals AS t (
        namespace, queue, day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
    )
    SELECT
        namespace, name,
        now / 86400000,
        %(count)s, 0, 0, 0, 0, 0, 0, 0, 0
    FROM changed
    ON CONFLICT (namespace, queue, day) DO UPDATE SET accepted = t.accepted + excluded.accepted
)

SELECT
    now, paused,
    (SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 1 ORDER BY due_at LIMIT 1),
    (SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 2 ORDER BY due_at LIMIT 1),
    (SELECT due_at FROM dt.jobs WHERE queue = %(queue)s AND place = 0 AND priority = 3 ORDER BY due_at LIMIT 1)
FROM changed;

-- The conditions of this statement contain every rule of the queue that can refuse a push, as those of
-- `push_single_statement` do. Single values take a tenth to a fifth less of the server's time than arrays of one. The
-- day's totals are updated: the first push of a day finds no row of them and goes step by step. It may run alone,
-- without `lock_queue_by_id`. Then somebody else may change the queue after this statement's snapshot was taken: the
-- queue's row has another xmin after that, and the statement changes nothing.
-- name: push_one_single_statement
-- description: As push_single_statement, for one job. Answers now, paused, and whether a job is due then or before.
WITH seen AS MATERIALIZED (
    SELECT q.ctid AS place_of_row, q.xmin AS version, clock.now
    FROM (
        SELECT coalesce(%(now)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint) AS now
        OFFSET 0
    ) AS clock
    CROSS JOIN LATERAL (
        SELECT ctid, xmin, namespace, name
        FROM dt.queues
        WHERE id = %(queue)s
        LIMIT 1
    ) AS q
    CROSS JOIN LATERAL (
        SELECT 1
        FROM dt.totals AS t
        WHERE t.namespace = q.namespace AND t.queue = q.name AND t.day = clock.now / 86400000
        LIMIT 1
    ) AS today
),

changed AS (
    UPDATE dt.queues AS q
    SET
        known = 1,
        last_born = greatest(q.last_born, seen.now),
        jobs = q.jobs + 1,
        reap_at = CASE
            WHEN %(ttl)s = 0 OR q.reap_at BETWEEN 1 AND seen.now + %(ttl)s + 1 THEN q.reap_at
            ELSE seen.now + %(ttl)s + 1
        END
    FROM seen
    WHERE
        q.ctid = seen.place_of_row
        AND q.xmin = seen.version
        AND q.floor < seen.now
        AND q.offline = 0
        AND (q.max_jobs = 0 OR q.jobs < q.max_jobs)
        AND (q.max_body = 0 OR q.max_body >= %(largest)s)
        AND NOT EXISTS (SELECT 1 FROM dt.jobs WHERE queue = %(queue)s AND id = %(job_id)s)
    RETURNING q.namespace, q.name, q.paused, seen.now, %(due_at)s + %(relative)s * seen.now AS due_at
),

new_job AS (
    INSERT INTO dt.jobs (
        queue, id, born, place, priority, due_at, expires_at, lease_until, dead_at, tries, used, attempt, size,
        reason, error
    )
    SELECT
        %(queue)s, %(job_id)s, now, 0, %(priority)s, due_at,
        CASE WHEN %(ttl)s = 0 THEN 0 ELSE now + %(ttl)s END,
        0, 0, %(tries)s, 0, %(attempt)s, %(size)s,
        '',
        ''
    FROM changed
),

new_body AS (
    INSERT INTO dt.bodies (queue, id, attributes, body)
    SELECT
        %(queue)s, %(job_id)s, %(attributes)s,
        %(body)b
    FROM changed
),

-- By its key: the totals may have changed without the queue's row, and then their row has another place.
counted AS (
    UPDATE dt.totals AS t
    SET accepted = t.accepted + 1
    FROM changed
    WHERE t.namespace = changed.namespace AND t.queue = changed.name AND t.day = changed.now / 86400000
)

SELECT
    now, paused,
    EXISTS (
        SELECT 1
        FROM dt.jobs
        WHERE queue = %(queue)s AND place = 0 AND priority = ANY('{1,2,3}'::smallint []) AND due_at <= changed.due_at
    )
FROM changed;

-- name: ack_single_statement
-- description: The end of different leases that are all held. Answers now.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint) AS now
),

held AS MATERIALIZED (
    SELECT j.ctid AS place_of_row
    FROM unnest(%(ids)b::text [], %(borns)b::bigint [], %(attempts)b::bigint []) AS lease (id, born, attempt)
    CROSS JOIN LATERAL (
        SELECT ctid, place, born, attempt
        FROM dt.jobs
        WHERE queue = %(queue)s AND id = lease.id
        LIMIT 1
    ) AS j
    WHERE j.place = 1 AND j.born = lease.born AND j.attempt = lease.attempt
),

-- A queue that is left empty and has no rules is forgotten after a while: the reaper comes by then.
changed AS (
    UPDATE dt.queues AS q
    SET
        jobs = q.jobs - %(count)s,
        leased = q.leased - %(count)s,
        floor = greatest(q.floor, %(floor)s),
        last_born = CASE WHEN q.jobs = %(count)s THEN greatest(q.last_born, clock.now) ELSE q.last_born END,
        reap_at = CASE
            WHEN
                q.jobs > %(count)s
                OR q.known = 0
                OR q.paused + q.strict + q.expired_to_dead + q.kept + q.offline + q.max_jobs + q.max_body > 0
                OR q.reap_at BETWEEN 1 AND greatest(q.last_born, clock.now) + %(idle_ms)s
                THEN q.reap_at
            ELSE greatest(q.last_born, clock.now) + %(idle_ms)s
        END
    FROM clock
    WHERE q.id = %(queue)s AND (SELECT count(*) FROM held) = %(count)s
    RETURNING q.namespace, q.name, clock.now
),

gone_jobs AS (
    DELETE FROM dt.jobs
    WHERE ctid = ANY(ARRAY(SELECT held.place_of_row FROM held CROSS JOIN changed))
),

gone_bodies AS (
    DELETE FROM dt.bodies
    WHERE ctid = ANY(ARRAY(
        SELECT found.ctid
        FROM changed
        CROSS JOIN unnest(%(ids)b::text []) AS wanted (id)
        CROSS JOIN LATERAL (SELECT ctid FROM dt.bodies WHERE queue = %(queue)s AND id = wanted.id LIMIT 1) AS found
    ))
),

counted AS (
    INSERT INTO dt.totals AS t (
        namespace, queue, day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
    )
    SELECT
        namespace, name,
        now / 86400000,
        0, 0, %(count)s, 0, 0, 0, 0, 0, 0
    FROM changed
    ON CONFLICT (namespace, queue, day) DO UPDATE SET acked = t.acked + excluded.acked
)

SELECT now FROM changed;

-- name: reserve_single_statement
-- description: Leases for one ask. No row if an expired job is among the first, or too many bytes. No jobs: id is null.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s, floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint) AS now
),

q AS MATERIALIZED (
    SELECT namespace, name, paused, strict
    FROM dt.queues
    WHERE id = %(queue)s
),

ready AS MATERIALIZED (
    SELECT
        p.priority,
        j.*,
        row_number() OVER (PARTITION BY p.priority ORDER BY j.due_at, j.id) AS turn,
        CASE WHEN q.strict = 0 THEN p.quota ELSE 0 END AS quota
    FROM q
    CROSS JOIN clock
    CROSS JOIN (
        VALUES (1::smallint, %(high)s::bigint), (2::smallint, %(normal)s::bigint), (3::smallint, %(low)s::bigint)
    ) AS p (priority, quota)
    CROSS JOIN LATERAL (
        SELECT ctid AS place_of_row, id, born, due_at, expires_at, tries, used, attempt, error, size
        FROM dt.jobs
        WHERE queue = %(queue)s AND place = 0 AND priority = p.priority AND due_at <= clock.now
        ORDER BY due_at, id
        LIMIT %(limit)s
    ) AS j
    WHERE q.paused = 0
),

-- First each priority's share, then the others by priority.
picked AS MATERIALIZED (
    SELECT
        ready.*,
        row_number() OVER (ORDER BY turn > quota, priority, turn) AS number
    FROM ready
    ORDER BY turn > quota, priority, turn
    LIMIT %(limit)s
),

usual AS MATERIALIZED (
    SELECT count(*) AS jobs
    FROM picked
    CROSS JOIN clock
    HAVING
        coalesce(sum(picked.size), 0) <= %(bytes)s
        AND NOT coalesce(bool_or(picked.expires_at BETWEEN 1 AND clock.now - 1), false)
),

leased AS (
    UPDATE dt.jobs AS j
    SET
        place = 1,
        lease_until = clock.now + %(ttr_ms)s,
        used = j.used + 1,
        attempt = j.attempt + 1
    FROM clock
    WHERE j.ctid = ANY(ARRAY(SELECT picked.place_of_row FROM picked CROSS JOIN usual))
),

changed AS (
    UPDATE dt.queues AS u
    SET
        leased = u.leased + usual.jobs,
        reap_at = CASE
            WHEN u.reap_at BETWEEN 1 AND clock.now + %(ttr_ms)s THEN u.reap_at
            ELSE clock.now + %(ttr_ms)s
        END
    FROM clock
    CROSS JOIN usual
    WHERE u.id = %(queue)s AND usual.jobs > 0
),

counted AS (
    INSERT INTO dt.totals AS t (
        namespace, queue, day, accepted, delivered, acked, released, lapsed, dead, cancelled, expired, respawned
    )
    SELECT
        q.namespace, q.name,
        clock.now / 86400000,
        0, usual.jobs, 0, 0, 0, 0, 0, 0, 0
    FROM q
    CROSS JOIN clock
    CROSS JOIN usual
    WHERE usual.jobs > 0
    ON CONFLICT (namespace, queue, day) DO UPDATE SET delivered = t.delivered + excluded.delivered
),

-- The earliest that is left. What is picked comes first in each priority.
left_over AS (
    SELECT min(j.due_at) AS due_at
    FROM (VALUES (1::smallint), (2::smallint), (3::smallint)) AS p (priority)
    LEFT JOIN LATERAL (
        SELECT due_at, id
        FROM picked
        WHERE priority = p.priority
        ORDER BY turn DESC
        LIMIT 1
    ) AS last ON true
    CROSS JOIN LATERAL (
        SELECT due_at
        FROM dt.jobs
        WHERE
            queue = %(queue)s
            AND place = 0
            AND priority = p.priority
            AND (due_at, id) > (coalesce(last.due_at, -1), coalesce(last.id, ''))
        ORDER BY due_at, id
        LIMIT 1
    ) AS j
)

SELECT
    clock.now, q.paused, left_over.due_at, b.body, b.attributes, picked.priority, picked.id, picked.born,
    picked.due_at, picked.expires_at, picked.tries, picked.used, picked.attempt, picked.error
FROM usual
CROSS JOIN clock
CROSS JOIN q
CROSS JOIN left_over
LEFT JOIN picked ON true
LEFT JOIN LATERAL (
    SELECT body, attributes
    FROM dt.bodies
    WHERE queue = %(queue)s AND id = picked.id
    LIMIT 1
) AS b ON true
ORDER BY picked.number;
