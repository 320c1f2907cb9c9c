-- Deletes a held batch, and puts some of its jobs back.
-- KEYS: zset of batches, list of the batch, then a key for each of the steps that follow
-- ARGV: name of the batch, '1' to close it instead if several relays have held it (see hold.lua), then three fields per
--       step: ZADD, score, job; or RPUSH, '', job; or PUBLISH, message, job: the key is a channel, which gets the
--       message if the job is the first of the zset two steps before
-- Returns nothing. Does nothing if the batch is gone.
local held_at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not held_at then return end
if ARGV[2] == '1' and tonumber(held_at) <= 0 then
    if tonumber(held_at) == 0 then redis.call('ZADD', KEYS[1], -1000 * redis.call('TIME')[1], ARGV[1]) end
    return
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('UNLINK', KEYS[2])
for n = 3, #KEYS do
    local first = 3 + (n - 3) * 3
    if ARGV[first] == 'ZADD' then
        redis.call('ZADD', KEYS[n], ARGV[first + 1], ARGV[first + 2])
    elseif ARGV[first] == 'PUBLISH' then
        if redis.call('ZRANK', KEYS[n - 2], ARGV[first + 2]) == 0 then redis.call('PUBLISH', KEYS[n], ARGV[first + 1]) end
    else
        redis.call('RPUSH', KEYS[n], ARGV[first + 2])
    end
end
