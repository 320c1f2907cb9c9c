-- A queue's totals of the day are in its own row, which a step writes anyway. Large bodies have a table of their own; those
-- that are in `jobs` already stay there until their jobs end, so that a large file is upgraded at once.

ALTER TABLE queues ADD COLUMN today INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_accepted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_delivered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_acked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_released INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_lapsed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_dead INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_cancelled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_expired INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN today_respawned INTEGER NOT NULL DEFAULT 0;

CREATE TABLE bodies (
    number INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs WHEN typeof(old.body) = 'integer'
BEGIN DELETE FROM bodies WHERE number = old.body; END;
