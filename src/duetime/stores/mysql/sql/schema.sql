-- The tables of a store, and migration 1, which makes them.
-- `dt.name` represents the table with the prefix of the store's URL. MySQL calls the collation utf8mb4_0900_bin.
-- Instants are epoch milliseconds, flags 0 or 1, and an instant of 0 means none. Texts compare by code point.

-- Made before the first migration begins. `applied_at` is 0 while a migration is under way.
CREATE TABLE dt.migrations (
    number integer PRIMARY KEY,
    name varchar(255) NOT NULL,
    applied_at bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- One row: what the whole store knows about itself.
CREATE TABLE dt.meta (
    one tinyint PRIMARY KEY CHECK (one = 1),
    epoch varchar(64) NOT NULL,         -- drawn once per store
    registry_version bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- One row: what must be known of rows that were removed.
CREATE TABLE dt.forgotten (
    one tinyint PRIMARY KEY CHECK (one = 1),
    registry_version bigint NOT NULL,   -- the highest version of a removed tombstone
    floor bigint NOT NULL               -- the highest floor of a removed queue; new queues begin with it
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Hands out numbers of queues. A row is deleted in the transaction that inserts it.
CREATE TABLE dt.queue_ids (
    id bigint AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- A queue's rules and what its verbs must know in the same step: each step locks this row first. For the sake of its
-- floor the row outlives a purge by a minute; then the floor goes into `forgotten`.
CREATE TABLE dt.queues (
    id bigint PRIMARY KEY,              -- under which its jobs are kept; a purge gives the queue a new one
    namespace varchar(255) NOT NULL,
    name varchar(255) NOT NULL,
    known tinyint NOT NULL,             -- pushed to or configured, and not purged since
    paused tinyint NOT NULL,
    strict tinyint NOT NULL,
    expired_to_dead tinyint NOT NULL,
    max_jobs bigint NOT NULL,
    max_body bigint NOT NULL,
    kept tinyint NOT NULL,              -- never forgotten, nor are its totals
    offline tinyint NOT NULL,           -- refuses pushes
    floor bigint NOT NULL,              -- every later born is above it
    last_born bigint NOT NULL,          -- the highest born, or the end of the last job: when the queue was last used
    expired bigint NOT NULL,            -- running total
    jobs bigint NOT NULL,               -- rows in jobs, of which ...
    leased bigint NOT NULL,             -- ... in place 1
    dead bigint NOT NULL,               -- ... in place 2
    reap_at bigint NOT NULL,            -- a lower bound of when the reaper is next needed; 0 = never
    -- serves lock_queue, load_queue, list_queues, list_namespace
    UNIQUE INDEX by_name (namespace, name),
    -- serves queues_to_reap, next_reap
    INDEX by_reap (reap_at),
    -- serves removable_queues
    INDEX by_known (known, floor)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- What happened in queues (see job.Totals). Kept by the queue's name: they outlive a queue that was forgotten.
CREATE TABLE dt.totals (
    namespace varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    day bigint NOT NULL,                -- UTC, from the epoch on; 0 = all that are no longer kept one by one
    accepted bigint NOT NULL,
    delivered bigint NOT NULL,
    acked bigint NOT NULL,
    released bigint NOT NULL,
    lapsed bigint NOT NULL,
    dead bigint NOT NULL,
    cancelled bigint NOT NULL,
    expired bigint NOT NULL,
    respawned bigint NOT NULL,
    PRIMARY KEY (namespace, queue, day),
    -- serves queues_with_old_totals
    INDEX by_day (day)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Ids that purged queues had: their jobs no longer count, and the reaper removes them bit by bit.
CREATE TABLE dt.discarded (
    queue bigint PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Bodies have a table of their own, because a lease or a release must not touch it.
CREATE TABLE dt.jobs (
    queue bigint NOT NULL,              -- negative: set aside, because the row cannot be read as a job
    id varchar(255) NOT NULL,
    born bigint NOT NULL,
    place tinyint NOT NULL CHECK (place IN (0, 1, 2)),          -- 0 waiting -> 1 leased -> 0, 2 dead or gone
    priority tinyint NOT NULL CHECK (priority IN (1, 2, 3)),    -- 1 high, 2 normal, 3 low
    due_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    lease_until bigint NOT NULL,        -- in place 1 only
    dead_at bigint NOT NULL,            -- in place 2 only
    -- When its place ends or began. One index on it does the work of three partial ones, which MySQL does not have.
    turn_at bigint AS (CASE place WHEN 1 THEN lease_until WHEN 2 THEN dead_at ELSE expires_at END) STORED,
    tries bigint NOT NULL,
    used bigint NOT NULL,
    attempt bigint NOT NULL,
    size bigint NOT NULL,               -- of the body and the attributes
    reason varchar(255) NOT NULL,
    error mediumtext NOT NULL,
    PRIMARY KEY (queue, id),
    -- serves ready_jobs, heads, heads_of, queues_of, count_due, list_waiting, count_waiting
    INDEX by_due (queue, place, priority, due_at, id),
    -- serves lapsed_jobs, next_lapse, list_leased, longest_dead, list_dead, expired_jobs, count_due, next_expiry
    INDEX by_turn (queue, place, turn_at, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

CREATE TABLE dt.bodies (
    queue bigint NOT NULL,
    id varchar(255) NOT NULL,
    attributes longtext,                -- JSON; null for none
    body longblob NOT NULL,
    PRIMARY KEY (queue, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Pushes that happen once. Kept by the queue's name: a purge does not touch them.
CREATE TABLE dt.marks (
    namespace varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    name varchar(258) NOT NULL,         -- with the other two, the longest key that InnoDB takes
    digest blob NOT NULL,
    expires_at bigint NOT NULL,
    answer longblob NOT NULL,           -- what was answered then, as msgpack
    PRIMARY KEY (namespace, queue, name),
    -- serves delete_old_marks
    INDEX by_end (expires_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Results of finished jobs, kept for a while. Kept by the queue's name: a purge does not touch them.
CREATE TABLE dt.results (
    namespace varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    id varchar(255) NOT NULL,
    born bigint NOT NULL,               -- of the job that gave the result
    kept_until bigint NOT NULL,
    result longblob NOT NULL,
    PRIMARY KEY (namespace, queue, id),
    -- serves delete_old_results
    INDEX by_end (kept_until)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Records, and the tombstones of those that are gone.
CREATE TABLE dt.registry (
    kind varchar(64) NOT NULL,
    `key` varchar(700) NOT NULL,
    value longblob,                     -- null: deleted
    version bigint NOT NULL,
    deleted tinyint AS (value IS NULL) STORED,
    PRIMARY KEY (kind, `key`),
    -- serves records_since
    UNIQUE INDEX by_version (version),
    -- serves delete_old_tombstones
    INDEX by_deletion (deleted, version)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

CREATE TABLE dt.counters (
    name varchar(760) PRIMARY KEY,
    value bigint NOT NULL,
    expires_at bigint NOT NULL,
    -- serves delete_old_counters
    INDEX by_end (expires_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Messages to other processes, which read what was added since their last poll. Old ones are deleted.
CREATE TABLE dt.announcements (
    number bigint AUTO_INCREMENT PRIMARY KEY,
    message mediumtext NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Jobs that other programs have written in transactions of their own (`duetime.push_in`), until a server sees them:
-- its reaper moves them into `jobs`, as a push.
CREATE TABLE dt.outbox (
    number bigint AUTO_INCREMENT PRIMARY KEY,
    namespace varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    id varchar(255) NOT NULL,
    if_exists varchar(16) NOT NULL,     -- keep or replace
    priority tinyint NOT NULL,
    due_at bigint NOT NULL,
    ttl_ms bigint NOT NULL,             -- counts from the moment in which a server sees the job
    tries bigint NOT NULL,
    attributes longtext,                -- JSON; null for none
    body longblob NOT NULL,
    -- serves next_outbox_jobs
    INDEX by_queue (namespace, queue, number)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin;

-- Jobs for people with a client or a BI tool; no statement of the store reads it. Times are in the time zone of the
-- session. Id, queue and the last five columns are those of Laravel's table `jobs`, with its unix seconds; but its
-- reserved_at is when a job was taken, and here it is when the lease ends. from_unixtime ends in January 2038; what is
-- later is added to it. Impossible times are shown as 1970 or as the end of 9999, less the day that a
-- time zone may add. The payload is null for a body that is no UTF-8: text of such a body has other bytes. It goes
-- through utf16, because the server's utf8mb4 takes halves of surrogate pairs, which no client can read.
CREATE VIEW dt.readable_jobs AS
SELECT
    q.namespace,
    q.name AS queue,
    j.id,
    CASE
        WHEN j.place = 1 THEN 'leased'
        WHEN j.place = 2 THEN 'dead'
        WHEN j.due_at > unix_timestamp(now(3)) * 1000 THEN 'delayed'
        WHEN j.expires_at > 0 AND j.expires_at < unix_timestamp(now(3)) * 1000 THEN 'expired'
        ELSE 'ready'
    END AS state,
    CASE j.priority WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END AS priority,
    timestampadd(
        MICROSECOND,
        (least(greatest(j.due_at, 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(j.due_at, 2147483647000), 0) / 1000.0)
    ) AS due_at,
    timestampadd(
        MICROSECOND,
        (least(greatest(nullif(j.expires_at, 0), 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(nullif(j.expires_at, 0), 2147483647000), 0) / 1000.0)
    ) AS expires_at,
    timestampadd(
        MICROSECOND,
        (least(greatest(nullif(j.lease_until, 0), 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(nullif(j.lease_until, 0), 2147483647000), 0) / 1000.0)
    ) AS lease_until,
    timestampadd(
        MICROSECOND,
        (least(greatest(nullif(j.dead_at, 0), 2147483647000), 253402214399999) - 2147483647000) * 1000,
        from_unixtime(greatest(least(nullif(j.dead_at, 0), 2147483647000), 0) / 1000.0)
    ) AS dead_at,
    j.tries,
    j.used,
    j.reason,
    j.error,
    b.attributes,
    b.body,
    CASE
        WHEN b.body = cast(convert(convert(convert(b.body USING utf8mb4) USING utf16) USING utf8mb4) AS BINARY)
            THEN convert(b.body USING utf8mb4)
    END AS payload,
    j.attempt AS attempts,
    nullif(j.lease_until, 0) DIV 1000 AS reserved_at,
    j.due_at DIV 1000 AS available_at,
    j.born DIV 1000 AS created_at
FROM dt.jobs AS j
INNER JOIN dt.queues AS q ON q.id = j.queue
INNER JOIN dt.bodies AS b ON b.queue = j.queue AND b.id = j.id;

INSERT IGNORE INTO dt.meta (one, epoch, registry_version) VALUES (1, replace(uuid(), '-', ''), 0);

INSERT IGNORE INTO dt.forgotten (one, registry_version, floor) VALUES (1, 0, 0);
