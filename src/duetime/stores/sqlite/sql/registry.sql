-- Records and counters.

-- name: get_record
-- description: One record; a tombstone's value is null.
SELECT
    value,
    version
FROM registry
WHERE kind = :kind AND key = :key;

-- name: registry_version
-- description: The version of the last write.
SELECT registry_version FROM meta WHERE one = 1;

-- name: next_version
-- description: Every write of a record has its own version.
UPDATE meta SET registry_version = registry_version + 1 WHERE one = 1 RETURNING registry_version;

-- name: put_record
-- description: Write a record, or its tombstone with a value of null.
INSERT OR REPLACE INTO registry (
    kind,
    key,
    value,
    version
) VALUES (:kind, :key, :value, :version);

-- name: delete_old_tombstones
-- description: All but the last ones; answers their versions, which are few, because each deletion does this.
DELETE FROM registry
WHERE
    value IS NULL
    AND version <= (
        SELECT version
        FROM registry
        WHERE value IS NULL
        ORDER BY version DESC
        LIMIT 1 OFFSET :keep
    )
RETURNING version;

-- name: forget_version
-- description: Whoever knows less than this version can no longer be told what was deleted.
UPDATE forgotten SET registry_version = max(registry_version, :version) WHERE one = 1;

-- name: forgotten_version
-- description: The last deletion whose tombstone is gone.
SELECT registry_version FROM forgotten WHERE one = 1;

-- name: list_records
-- description: All of a kind, in order.
SELECT
    key,
    value,
    version
FROM registry
WHERE kind = :kind AND value IS NOT NULL
ORDER BY key;

-- name: records_since
-- description: What was written after a version, oldest write first; tombstones with a value of null.
SELECT
    kind,
    key,
    value,
    version
FROM registry
WHERE version > :since
ORDER BY version;

-- name: get_counter
-- description: A counter, live or not.
SELECT
    value,
    expires_at
FROM counters
WHERE name = :name;

-- name: put_counter
-- description: Write a counter.
INSERT OR REPLACE INTO counters (
    name,
    value,
    expires_at
) VALUES (:name, :value, :expires_at);

-- name: counters_from
-- description: Live counters whose names are in a range, in order.
SELECT
    name,
    value
FROM counters
WHERE name >= :prefix AND name < :beyond AND (expires_at = 0 OR expires_at > :now)
ORDER BY name;

-- name: delete_old_counters
-- description: Bounded, because nobody waits for it.
DELETE FROM counters
WHERE name IN (
    SELECT name
    FROM counters
    WHERE expires_at > 0 AND expires_at <= :now
    ORDER BY expires_at
    LIMIT :limit
);
