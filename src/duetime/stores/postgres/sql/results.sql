-- Results of finished jobs.

-- name: result_sizes
-- description: The bytes of results that are kept at this time.
SELECT
    wanted.id,
    length(r.result)
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT born, result, kept_until
    FROM dt.results
    WHERE namespace = %(namespace)s AND queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS r
WHERE r.kept_until > %(now)s;

-- name: get_results
-- description: Results that are kept at this time.
SELECT wanted.id, r.born, r.result, r.kept_until
FROM unnest(%(ids)b::text []) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT born, result, kept_until
    FROM dt.results
    WHERE namespace = %(namespace)s AND queue = %(queue)s AND id = wanted.id
    LIMIT 1
) AS r
WHERE r.kept_until > %(now)s;
