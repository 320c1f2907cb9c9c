-- Adds elements to a Redisson delayed queue, and announces the new head.
-- KEYS: zset of due times, list of elements, channel
-- ARGV: pairs of (delay in ms, packed element)
-- Returns nothing.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor((tonumber(time[2]) + 999) / 1000)
for n = 1, #ARGV, 2 do
    local due = string.format('%.0f', now_ms + tonumber(ARGV[n]))
    redis.call('ZADD', KEYS[1], due, ARGV[n + 1])
    redis.call('RPUSH', KEYS[2], ARGV[n + 1])
    if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == ARGV[n + 1] then redis.call('PUBLISH', KEYS[3], due) end
end
