-- Results of finished jobs.

-- name: keep_result
-- description: Also over one that the id has from before.
INSERT OR REPLACE INTO results (
    namespace,
    queue,
    id,
    born,
    kept_until,
    result
) VALUES (:namespace, :queue, :id, :born, :kept_until, :result);

-- name: result_sizes
-- description: The bytes of results that are kept at this time.
SELECT
    id,
    length(result)
FROM results
WHERE namespace = :namespace AND queue = :queue AND id IN (SELECT value FROM json_each(:ids)) AND kept_until > :now;

-- name: get_results
-- description: Results that are kept at this time.
SELECT
    id,
    born,
    result,
    kept_until
FROM results
WHERE namespace = :namespace AND queue = :queue AND id IN (SELECT value FROM json_each(:ids)) AND kept_until > :now;

-- name: list_joins
-- description: Counts of joins, which are kept as results under names that no id can be.
SELECT
    id,
    result,
    kept_until
FROM results
WHERE namespace = :namespace AND queue = :queue AND id > :after AND id < :before AND kept_until > :now
ORDER BY id
LIMIT :limit;

-- name: delete_old_results
-- description: Bounded, because nobody waits for it.
DELETE FROM results
WHERE (namespace, queue, id) IN (
    SELECT
        namespace,
        queue,
        id
    FROM results
    WHERE kept_until <= :now
    ORDER BY kept_until
    LIMIT :limit
);
