-- Deletes a held batch.
-- KEYS: zset of batches, list of the batch
-- ARGV: name of the batch
-- Returns nothing.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
