-- Results of finished jobs.

-- name: keep_result
-- description: Also over one that the id has from before.
INSERT INTO dt.results (namespace, queue, id, born, kept_until, result)
VALUES (%(namespace)s, %(queue)s, %(id)s, %(born)s, %(kept_until)s, %(result)s)
ON DUPLICATE KEY UPDATE born = values(born), kept_until = values(kept_until), result = values(result);

-- name: delete_old_results
-- description: Bounded: more follow in the next round of the reaper. A result that was kept again meanwhile stays.
DELETE r
FROM (
    SELECT namespace, queue, id
    FROM dt.results FORCE INDEX (by_end)
    WHERE kept_until <= %(now)s
    ORDER BY kept_until
    LIMIT %(limit)s
) AS old
STRAIGHT_JOIN dt.results AS r FORCE INDEX (PRIMARY)
    ON r.namespace = old.namespace AND r.queue = old.queue AND r.id = old.id
WHERE r.kept_until <= %(now)s;
