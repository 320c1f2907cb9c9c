-- What must always be true. Full walks, for tests and `doctor --deep`; each row found is a broken promise.

-- name: check_file
-- description: The file's own structure, and each index against its table.
PRAGMA integrity_check(20);

-- name: check_places
-- description: Jobs whose fields do not fit the place they are in.
SELECT queue, id, place
FROM jobs
WHERE
    place NOT IN (0, 1, 2)
    OR priority NOT IN (1, 2, 3)
    OR (place = 1) <> (lease_until > 0)
    OR (place = 2) <> (dead_at > 0)
    OR (place = 2) <> (reason <> '')
    OR (place = 2 AND expires_at > 0)
    OR used < 0
    OR used > attempt;

-- name: check_owners
-- description: Jobs that belong to no queue, not even to a purged one.
SELECT queue, id
FROM jobs
WHERE queue NOT IN (SELECT id FROM queues) AND queue NOT IN (SELECT queue FROM discarded);

-- name: check_bodies
-- description: Jobs whose large body is not there, and bodies that no job names.
SELECT
    queue, id,
    'has no body'
FROM jobs
WHERE typeof(body) = 'integer' AND body NOT IN (SELECT number FROM bodies)
UNION ALL
SELECT
    0, number,
    'is a body without a job'
FROM bodies
WHERE number NOT IN (SELECT body FROM jobs WHERE typeof(body) = 'integer');
