-- Adds jobs of ours to a list of the other system, each at most once in a week.
-- KEYS: list to append to, zset of accepted ids by the second they came, notify list (Laravel only)
-- ARGV: id, text, id, text ...
-- Returns how many were added.
local now = tonumber(redis.call('TIME')[1])
local added = 0
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - 7 * 86400, 'LIMIT', 0, 1000)
if #old > 0 then redis.call('ZREM', KEYS[2], unpack(old)) end
for n = 1, #ARGV, 2 do
    if redis.call('ZADD', KEYS[2], 'NX', now, ARGV[n]) == 1 then
        redis.call('RPUSH', KEYS[1], ARGV[n + 1])
        if KEYS[3] then redis.call('RPUSH', KEYS[3], '1') end
        added = added + 1
    end
end
return added
