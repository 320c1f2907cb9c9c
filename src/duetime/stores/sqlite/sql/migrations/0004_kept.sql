-- A queue can be kept: it is never forgotten, however idle, nor are its totals.

ALTER TABLE queues ADD COLUMN kept INTEGER NOT NULL DEFAULT 0;
