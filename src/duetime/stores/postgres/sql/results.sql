-- Results of finished jobs.

-- name: keep_result
-- description: Also over one that the id has from before.
INSERT INTO dt.results (
    namespace,
    queue,
    id,
    born,
    kept_until,
    result
) VALUES (%(namespace)s, %(queue)s, %(id)s, %(born)s, %(kept_until)s, %(result)s)
ON CONFLICT (namespace, queue, id) DO UPDATE SET
    born = excluded.born,
    kept_until = excluded.kept_until,
    result = excluded.result;

-- name: result_sizes
-- description: The bytes of results that are kept at this time.
SELECT
    wanted.id,
    length(r.result)
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT
        born,
        result,
        kept_until
    FROM dt.results
    WHERE namespace = %(namespace)s AND queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS r
WHERE r.kept_until > %(now)s;

-- name: get_results
-- description: Results that are kept at this time.
SELECT
    wanted.id,
    r.born,
    r.result,
    r.kept_until
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT
        born,
        result,
        kept_until
    FROM dt.results
    WHERE namespace = %(namespace)s AND queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS r
WHERE r.kept_until > %(now)s;

-- name: list_joins
-- description: Counts of joins, which are kept as results under names that no id can be.
SELECT
    id,
    result,
    kept_until
FROM dt.results
WHERE namespace = %(namespace)s AND queue = %(queue)s AND id > %(after)s AND id < %(before)s AND kept_until > %(now)s
ORDER BY id
LIMIT %(limit)s;

-- name: delete_old_results
-- description: Bounded, because nobody waits for it.
DELETE FROM dt.results
WHERE (namespace, queue, id) IN (
    SELECT
        namespace,
        queue,
        id
    FROM dt.results
    WHERE kept_until <= %(now)s
    ORDER BY kept_until
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);
