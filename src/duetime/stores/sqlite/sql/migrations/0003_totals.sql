-- Queues count what happens in them. The jobs that are there count as accepted, delivered or dead.

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

CREATE INDEX totals_days ON totals (day) WHERE day > 0;

INSERT INTO totals (
    namespace,
    queue,
    day,
    accepted,
    delivered,
    acked,
    released,
    lapsed,
    dead,
    cancelled,
    expired,
    respawned
) SELECT
    namespace,
    name,
    0,
    jobs,
    leased,
    0,
    0,
    0,
    dead,
    0,
    0,
    0
FROM queues
WHERE jobs > 0;
