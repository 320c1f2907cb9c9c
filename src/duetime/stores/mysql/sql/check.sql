-- What must always be true. Full walks, for tests and `doctor --deep`; each row found is a broken promise.

-- name: check_counts
-- description: Queues whose counts differ from a walk over their jobs.
SELECT
    concat(q.namespace, '/', q.name),
    q.jobs, q.leased, q.dead,
    count(j.id) AS found,
    count(CASE WHEN j.place = 1 THEN 1 END) AS found_leased,
    count(CASE WHEN j.place = 2 THEN 1 END) AS found_dead
FROM dt.queues AS q
LEFT JOIN dt.jobs AS j ON j.queue = q.id
GROUP BY q.id
HAVING q.jobs <> found OR q.leased <> found_leased OR q.dead <> found_dead;

-- name: check_bodies
-- description: Jobs without a body, and bodies without a job.
SELECT
    j.queue, j.id,
    'has no body'
FROM dt.jobs AS j
LEFT JOIN dt.bodies AS b ON j.queue = b.queue AND j.id = b.id
WHERE b.id IS NULL
UNION ALL
SELECT
    b.queue, b.id,
    'is a body without a job'
FROM dt.bodies AS b
LEFT JOIN dt.jobs AS j ON j.queue = b.queue AND j.id = b.id
WHERE j.id IS NULL;

-- name: check_agenda
-- description: Queues that the reaper would visit too late, or never.
SELECT
    concat(q.namespace, '/', q.name),
    q.reap_at,
    min(CASE WHEN j.place = 1 THEN j.lease_until ELSE j.expires_at + 1 END) AS needed_at
FROM dt.queues AS q
INNER JOIN dt.jobs AS j ON j.queue = q.id AND (j.place = 1 OR (j.place = 0 AND j.expires_at > 0))
GROUP BY q.id
HAVING q.reap_at = 0 OR q.reap_at > needed_at;
