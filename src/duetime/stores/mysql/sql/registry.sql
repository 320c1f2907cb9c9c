-- Records, counters and announcements.

-- name: next_version
-- description: Every write of a record has its own version.
UPDATE dt.meta SET registry_version = registry_version + 1 WHERE one = 1;

SELECT registry_version FROM dt.meta WHERE one = 1;

-- name: put_record
-- description: Write a record, or its tombstone with a value of null.
INSERT INTO dt.registry (kind, `key`, value, version) VALUES (%(kind)s, %(key)s, %(value)s, %(version)s)
ON DUPLICATE KEY UPDATE value = values(value), version = values(version);

-- name: delete_old_tombstones
-- description: All but the last ones; answers their versions, which are few, because each deletion does this.
SELECT version
FROM dt.registry FORCE INDEX (by_deletion)
WHERE deleted = 1
ORDER BY version DESC
LIMIT %(keep)s, 1000000;

DELETE r
FROM (
    SELECT version
    FROM dt.registry FORCE INDEX (by_deletion)
    WHERE deleted = 1
    ORDER BY version DESC
    LIMIT %(keep)s, 1000000
) AS old
STRAIGHT_JOIN dt.registry AS r FORCE INDEX (by_version) ON r.version = old.version;

-- name: touch_counter
-- description: A counter that was not there begins as one whose life has ended.
INSERT INTO dt.counters (name, value, expires_at) VALUES (%(name)s, 0, 1)
ON DUPLICATE KEY UPDATE value = value;

-- name: put_counter
-- description: Write a counter.
INSERT INTO dt.counters (name, value, expires_at) VALUES (%(name)s, %(value)s, %(expires_at)s)
ON DUPLICATE KEY UPDATE value = values(value), expires_at = values(expires_at);

-- name: delete_old_counters
-- description: Bounded: more follow in the next round of the reaper. A counter that was used meanwhile stays.
DELETE c
FROM (
    SELECT name
    FROM dt.counters FORCE INDEX (by_end)
    WHERE expires_at > 0 AND expires_at <= %(now)s
    ORDER BY expires_at
    LIMIT %(limit)s
) AS old
STRAIGHT_JOIN dt.counters AS c FORCE INDEX (PRIMARY) ON c.name = old.name
WHERE c.expires_at > 0 AND c.expires_at <= %(now)s;

-- name: put_announcement
-- description: A message to all processes, never in a transaction that changes jobs. Answers its number and their step.
INSERT INTO dt.announcements (message) VALUES (%(message)s);

SELECT
    last_insert_id(),
    @@auto_increment_increment;

-- name: last_announcement
-- description: From here on a process that begins to listen reads.
SELECT coalesce(max(number), 0) FROM dt.announcements;

-- name: announcements_since
-- description: What was added since the last poll, and numbers that were passed over because they were not committed.
SELECT number, message
FROM dt.announcements FORCE INDEX (PRIMARY)
WHERE number > %(last)s OR number IN %(missing)s
ORDER BY number;

-- name: delete_old_announcements
-- description: All processes have read these, or check every queue.
DELETE a FROM dt.announcements AS a FORCE INDEX (PRIMARY) WHERE a.number <= %(last)s;
