-- The tables of a store, and migration 1, which makes them.
-- `dt.name` and `dt_name` represent the schema and the prefix of the store's URL.
-- Instants are epoch milliseconds, flags 0 or 1, and an instant of 0 means none. Texts compare by code point.

-- One row: what the whole store knows about itself.
CREATE TABLE dt.meta (
    one smallint PRIMARY KEY CHECK (one = 1),
    epoch text NOT NULL,                -- drawn once per store
    registry_version bigint NOT NULL
);

CREATE TABLE dt.migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at bigint NOT NULL
);

-- One row: what must be known of rows that were removed.
CREATE TABLE dt.forgotten (
    one smallint PRIMARY KEY CHECK (one = 1),
    registry_version bigint NOT NULL,   -- the highest version of a removed tombstone
    floor bigint NOT NULL               -- the highest floor of a removed queue; new queues begin with it
);

CREATE SEQUENCE dt.queue_ids;

-- A queue's rules and what its verbs must know in the same step: each step locks this row first. For the sake of its
-- floor the row outlives a purge by a minute; then the floor goes into `forgotten`.
CREATE TABLE dt.queues (
    id bigint PRIMARY KEY,              -- under which its jobs are kept; a purge gives the queue a new one
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    known smallint NOT NULL,            -- pushed to or configured, and not purged since
    paused smallint NOT NULL,
    strict smallint NOT NULL,
    expired_to_dead smallint NOT NULL,
    max_jobs bigint NOT NULL,
    max_body bigint NOT NULL,
    kept smallint NOT NULL,             -- never forgotten, nor are its totals
    offline smallint NOT NULL,          -- refuses pushes
    floor bigint NOT NULL,              -- every later born is above it
    last_born bigint NOT NULL,          -- the highest born, or the end of the last job: when the queue was last used
    expired bigint NOT NULL,            -- running total
    jobs bigint NOT NULL,               -- rows in jobs, of which ...
    leased bigint NOT NULL,             -- ... in place 1
    dead bigint NOT NULL,               -- ... in place 2
    reap_at bigint NOT NULL             -- a lower bound of when the reaper is next needed; 0 = never
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- serves lock_queue, load_queue, list_queues, list_namespace
CREATE UNIQUE INDEX dt_queues_name ON dt.queues (namespace, name);

-- serves queues_to_reap, next_reap
CREATE INDEX dt_queues_reap ON dt.queues (reap_at) WHERE reap_at > 0;

-- serves removable_queues
CREATE INDEX dt_queues_unknown ON dt.queues (floor) WHERE known = 0;

-- What happened in queues (see job.Totals). Kept by the queue's name: they outlive a queue that was forgotten.
CREATE TABLE dt.totals (
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
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
    PRIMARY KEY (namespace, queue, day)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- serves queues_with_old_totals
CREATE INDEX dt_totals_days ON dt.totals (day) WHERE day > 0;

-- Ids that purged queues had: their jobs no longer count, and the reaper removes them bit by bit.
CREATE TABLE dt.discarded (
    queue bigint PRIMARY KEY
);

-- Bodies have a table of their own, because a lease or a release writes a new version of the row.
CREATE TABLE dt.jobs (
    queue bigint NOT NULL,              -- negative: set aside, because the row cannot be read as a job
    id text COLLATE "C" NOT NULL,
    born bigint NOT NULL,
    place smallint NOT NULL CHECK (place IN (0, 1, 2)),         -- 0 waiting -> 1 leased -> 0, 2 dead or gone
    priority smallint NOT NULL CHECK (priority IN (1, 2, 3)),   -- 1 high, 2 normal, 3 low
    due_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    lease_until bigint NOT NULL,        -- in place 1 only
    dead_at bigint NOT NULL,            -- in place 2 only
    tries bigint NOT NULL,
    used bigint NOT NULL,
    attempt bigint NOT NULL,
    size bigint NOT NULL,               -- of the body and the attributes
    reason text NOT NULL,
    error text NOT NULL,
    PRIMARY KEY (queue, id)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- serves ready_jobs, heads, heads_of, counts_of, list_waiting, count_waiting
CREATE INDEX dt_jobs_waiting ON dt.jobs (queue, priority, due_at, id) WHERE place = 0;

-- serves expired_jobs, counts_of, next_expiry
CREATE INDEX dt_jobs_expiring ON dt.jobs (queue, expires_at, id) WHERE place = 0 AND expires_at > 0;

-- serves lapsed_jobs, next_lapse, list_leased
CREATE INDEX dt_jobs_leased ON dt.jobs (queue, lease_until, id) WHERE place = 1;

-- serves longest_dead, list_dead
CREATE INDEX dt_jobs_dead ON dt.jobs (queue, dead_at, id) WHERE place = 2;

CREATE TABLE dt.bodies (
    queue bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    attributes text,                    -- JSON; null for none
    body bytea NOT NULL,
    PRIMARY KEY (queue, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Pushes that happen once. Kept by the queue's name: a purge does not touch them.
CREATE TABLE dt.marks (
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    expires_at bigint NOT NULL,
    answer bytea NOT NULL,              -- what was answered then, as msgpack
    PRIMARY KEY (namespace, queue, name)
);

-- serves delete_old_marks
CREATE INDEX dt_marks_old ON dt.marks (expires_at);

-- Results of finished jobs, kept for a while. Kept by the queue's name: a purge does not touch them.
CREATE TABLE dt.results (
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    born bigint NOT NULL,               -- of the job that gave the result
    kept_until bigint NOT NULL,
    result bytea NOT NULL,
    PRIMARY KEY (namespace, queue, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- serves delete_old_results
CREATE INDEX dt_results_old ON dt.results (kept_until);

-- Records, and the tombstones of those that are gone.
CREATE TABLE dt.registry (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value bytea,                        -- null: deleted
    version bigint NOT NULL,
    PRIMARY KEY (kind, key)
);

-- serves records_since
CREATE UNIQUE INDEX dt_registry_versions ON dt.registry (version);

-- serves delete_old_tombstones
CREATE INDEX dt_registry_tombstones ON dt.registry (version) WHERE value IS NULL;

CREATE TABLE dt.counters (
    name text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL,
    expires_at bigint NOT NULL
);

-- serves delete_old_counters
CREATE INDEX dt_counters_old ON dt.counters (expires_at) WHERE expires_at > 0;

-- Jobs that other programs have written in transactions of their own (`duetime.push_in`), until a server sees them:
-- its reaper moves them into `jobs`, as a push.
CREATE TABLE dt.outbox (
    number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    if_exists text NOT NULL,            -- keep or replace
    priority smallint NOT NULL,
    due_at bigint NOT NULL,
    ttl_ms bigint NOT NULL,             -- counts from the moment in which a server sees the job
    tries bigint NOT NULL,
    attributes text,                    -- JSON; null for none
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- serves outbox_queues, next_outbox_jobs
CREATE INDEX dt_outbox_queues ON dt.outbox (namespace, queue, number);

-- A body as text; null for one that is no UTF-8.
CREATE FUNCTION dt.body_text(body bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RETURN convert_from(body, 'UTF8'); EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$;

-- Jobs for people with psql or a BI tool; no statement of the store reads it. Id, queue and the last five columns are
-- those of Laravel's table `jobs`, with its unix seconds; but its reserved_at is when a job was taken, and here it is
-- when the lease ends. Times that nobody can have meant are shown as 1970 or as the end of 9999, less the day that a
-- time zone may add: PostgreSQL or its client would refuse to show any row.
CREATE VIEW dt.duetime_jobs AS
SELECT
    q.namespace,
    q.name AS queue,
    j.id,
    CASE
        WHEN j.place = 1 THEN 'leased'
        WHEN j.place = 2 THEN 'dead'
        WHEN j.due_at > extract(EPOCH FROM clock_timestamp()) * 1000 THEN 'delayed'
        WHEN j.expires_at > 0 AND j.expires_at < extract(EPOCH FROM clock_timestamp()) * 1000 THEN 'expired'
        ELSE 'ready'
    END AS state,
    CASE j.priority WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END AS priority,
    to_timestamp(least(greatest(j.due_at, 0), 253402214399999) / 1000.0) AS due_at,
    to_timestamp(nullif(least(greatest(j.expires_at, 0), 253402214399999), 0) / 1000.0) AS expires_at,
    to_timestamp(nullif(least(greatest(j.lease_until, 0), 253402214399999), 0) / 1000.0) AS lease_until,
    to_timestamp(nullif(least(greatest(j.dead_at, 0), 253402214399999), 0) / 1000.0) AS dead_at,
    j.tries,
    j.used,
    j.reason,
    j.error,
    b.attributes,
    b.body,
    dt.body_text(b.body) AS payload,
    j.attempt AS attempts,
    nullif(j.lease_until, 0) / 1000 AS reserved_at,
    j.due_at / 1000 AS available_at,
    j.born / 1000 AS created_at
FROM dt.jobs AS j
INNER JOIN dt.queues AS q ON q.id = j.queue
INNER JOIN dt.bodies AS b ON b.queue = j.queue AND b.id = j.id;

INSERT INTO dt.meta (one, epoch, registry_version) VALUES (1, replace(gen_random_uuid()::text, '-', ''), 0);

INSERT INTO dt.forgotten (one, registry_version, floor) VALUES (1, 0, 0);
