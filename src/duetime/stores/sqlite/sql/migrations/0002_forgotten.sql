-- Tombstones and the rows of purged queues no longer stay for ever.

-- One row: what must be known of rows that were removed.
CREATE TABLE forgotten (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    registry_version INTEGER NOT NULL,  -- the highest version of a removed tombstone
    floor INTEGER NOT NULL              -- the highest floor of a removed queue; new queues begin with it
);

CREATE INDEX registry_tombstones ON registry (version) WHERE value IS NULL;

CREATE INDEX queues_unknown ON queues (floor) WHERE known = 0;

INSERT INTO forgotten (one, registry_version, floor) VALUES (1, 0, 0);
