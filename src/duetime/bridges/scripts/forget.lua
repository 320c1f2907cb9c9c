-- Deletes a held batch, and puts some of its jobs back.
-- KEYS: zset of batches, list of the batch, then a key for each of the steps that follow
-- ARGV: name of the batch, then three fields per step: ZADD, score, job; or RPUSH, '', job; or PUBLISH, message, job:
--       the key is a channel, which gets the message if the job is the first of the zset two steps before
-- Returns nothing. Does nothing if the batch is gone.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return end
redis.call('UNLINK', KEYS[2])
for n = 3, #KEYS do
    local first = 2 + (n - 3) * 3
    if ARGV[first] == 'ZADD' then
        redis.call('ZADD', KEYS[n], ARGV[first + 1], ARGV[first + 2])
    elseif ARGV[first] == 'PUBLISH' then
        if redis.call('ZRANK', KEYS[n - 2], ARGV[first + 2]) == 0 then redis.call('PUBLISH', KEYS[n], ARGV[first + 1]) end
    else
        redis.call('RPUSH', KEYS[n], ARGV[first + 2])
    end
end
