-- The tables of a store, and migration 1, which makes them.
-- Instants are epoch milliseconds, flags 0 or 1, and an instant of 0 means none.

-- One row: what the whole file knows about itself.
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch TEXT NOT NULL,                -- drawn once per file
    wakes INTEGER NOT NULL,             -- transactions that announced something, so that a lost announcement shows
    registry_version INTEGER NOT NULL
);

CREATE TABLE migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
);

-- One row: what must be known of rows that were removed.
CREATE TABLE forgotten (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    registry_version INTEGER NOT NULL,  -- the highest version of a removed tombstone
    floor INTEGER NOT NULL              -- the highest floor of a removed queue; new queues begin with it
);

-- A queue's rules and what its verbs must know in the same step. For the sake of its floor the row outlives a purge by a
-- minute; then the floor goes into `forgotten`.
CREATE TABLE queues (
    id INTEGER PRIMARY KEY,             -- under which its jobs are kept; a purge gives the queue a new one
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    known INTEGER NOT NULL,             -- pushed to or configured, and not purged since
    paused INTEGER NOT NULL,
    strict INTEGER NOT NULL,
    expired_to_dead INTEGER NOT NULL,
    max_jobs INTEGER NOT NULL,
    max_body INTEGER NOT NULL,
    kept INTEGER NOT NULL,              -- never forgotten, nor are its totals
    offline INTEGER NOT NULL,           -- refuses pushes
    floor INTEGER NOT NULL,             -- every later born is above it
    last_born INTEGER NOT NULL,         -- the highest born, or the end of the last job: when the queue was last used
    expired INTEGER NOT NULL,           -- running total
    jobs INTEGER NOT NULL,              -- rows in jobs, of which ...
    leased INTEGER NOT NULL,            -- ... in place 1
    dead INTEGER NOT NULL,              -- ... in place 2
    reap_at INTEGER NOT NULL,           -- a lower bound of when the reaper is next needed; 0 = never
    today INTEGER NOT NULL DEFAULT 0,   -- the day of the totals that follow; those of earlier days are in `totals`
    today_accepted INTEGER NOT NULL DEFAULT 0,
    today_delivered INTEGER NOT NULL DEFAULT 0,
    today_acked INTEGER NOT NULL DEFAULT 0,
    today_released INTEGER NOT NULL DEFAULT 0,
    today_lapsed INTEGER NOT NULL DEFAULT 0,
    today_dead INTEGER NOT NULL DEFAULT 0,
    today_cancelled INTEGER NOT NULL DEFAULT 0,
    today_expired INTEGER NOT NULL DEFAULT 0,
    today_respawned INTEGER NOT NULL DEFAULT 0
);

-- serves load_queue, list_queues, list_namespace
CREATE UNIQUE INDEX queues_name ON queues (namespace, name);

-- serves queues_to_reap, next_reap
CREATE INDEX queues_reap ON queues (reap_at) WHERE reap_at > 0;

-- serves removable_queues
CREATE INDEX queues_unknown ON queues (floor) WHERE known = 0;

-- What happened in queues (see job.Totals) before the day that is in the queue's own row. Kept by the queue's name: the
-- totals outlive a queue that was forgotten.
CREATE TABLE totals (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    day INTEGER NOT NULL,               -- UTC, from the epoch on; 0 = all that are no longer kept one by one
    accepted INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    released INTEGER NOT NULL,
    lapsed INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    expired INTEGER NOT NULL,
    respawned INTEGER NOT NULL,
    PRIMARY KEY (namespace, queue, day)
) WITHOUT ROWID;

-- serves queues_with_old_totals
CREATE INDEX totals_days ON totals (day) WHERE day > 0;

-- Ids that purged queues had: their jobs no longer count, and the reaper removes them bit by bit.
CREATE TABLE discarded (
    queue INTEGER PRIMARY KEY
);

CREATE TABLE jobs (
    queue INTEGER NOT NULL,             -- negative: set aside, because the row cannot be read as a job
    id TEXT NOT NULL,
    born INTEGER NOT NULL,
    place INTEGER NOT NULL,             -- 0 waiting -> 1 leased -> 0, 2 dead or gone; 2 -> 0 by respawn
    priority INTEGER NOT NULL,          -- 1 high, 2 normal, 3 low
    due_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,       -- in place 1 only
    dead_at INTEGER NOT NULL,           -- in place 2 only
    tries INTEGER NOT NULL,
    used INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    attributes TEXT,                    -- JSON; null for none
    body BLOB NOT NULL,                 -- or, as an integer, the number of a large one in `bodies`
    PRIMARY KEY (queue, id)
) WITHOUT ROWID;

-- Bodies that would make a row of `jobs` larger than a page holds well: a lease or a release writes the whole row.
CREATE TABLE bodies (
    number INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- A large body ends with its job, whichever statement deletes that.
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs WHEN typeof(old.body) = 'integer'
BEGIN DELETE FROM bodies WHERE number = old.body; END;

-- The place comes last in each of these indexes, so that counting and finding the first read no row of the table.

-- serves ready_jobs, heads, list_waiting, count_waiting
CREATE INDEX jobs_waiting ON jobs (queue, priority, due_at, id, place) WHERE place = 0;

-- serves expired_jobs, counts_of, next_expiry
CREATE INDEX jobs_expiring ON jobs (queue, expires_at, id, place) WHERE place = 0 AND expires_at > 0;

-- serves lapsed_jobs, next_lapse, list_leased
CREATE INDEX jobs_leased ON jobs (queue, lease_until, id, place) WHERE place = 1;

-- serves longest_dead, list_dead
CREATE INDEX jobs_dead ON jobs (queue, dead_at, id, place) WHERE place = 2;

-- Pushes that happen once. Kept by the queue's name: a purge does not touch them.
CREATE TABLE marks (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    answer BLOB NOT NULL,               -- what was answered then, as msgpack
    PRIMARY KEY (namespace, queue, name)
) WITHOUT ROWID;

-- serves delete_old_marks
CREATE INDEX marks_old ON marks (expires_at);

-- Results of finished jobs, kept for a while. Kept by the queue's name: a purge does not touch them.
CREATE TABLE results (
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    born INTEGER NOT NULL,              -- of the job that gave the result
    kept_until INTEGER NOT NULL,
    result BLOB NOT NULL,
    PRIMARY KEY (namespace, queue, id)
);

-- serves delete_old_results
CREATE INDEX results_old ON results (kept_until);

-- Records, and the tombstones of those that are gone.
CREATE TABLE registry (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB,                         -- null: deleted
    version INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;

-- serves records_since
CREATE UNIQUE INDEX registry_versions ON registry (version);

-- serves delete_old_tombstones
CREATE INDEX registry_tombstones ON registry (version) WHERE value IS NULL;

CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- serves delete_old_counters
CREATE INDEX counters_old ON counters (expires_at) WHERE expires_at > 0;

INSERT INTO meta (one, epoch, wakes, registry_version) VALUES (1, lower(hex(randomblob(8))), 0, 0);

INSERT INTO forgotten (one, registry_version, floor) VALUES (1, 0, 0);
