-- Deletes a held batch, and puts some of its jobs back.
-- KEYS: zset of batches, list of the batch, then the key of each job that is put back
-- ARGV: name of the batch, then three fields per job: ZADD or RPUSH, score ('' for RPUSH), job
-- Returns nothing. Does nothing if the batch is gone.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return end
redis.call('UNLINK', KEYS[2])
for n = 3, #KEYS do
    local first = 2 + (n - 3) * 3
    if ARGV[first] == 'ZADD' then
        redis.call('ZADD', KEYS[n], ARGV[first + 1], ARGV[first + 2])
    else
        redis.call('RPUSH', KEYS[n], ARGV[first + 2])
    end
end
