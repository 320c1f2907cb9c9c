-- Moves delayed jobs that are due, and reserved jobs whose reservation has ended, to the ready list.
-- KEYS: delayed zset, reserved zset, ready list, notify list
-- ARGV: most jobs to move from each
-- Returns the milliseconds until the next delayed job is due or reservation ends, or -1.
-- Scores are whole seconds, so a score that is not above the current second is due.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local wait_ms = -1
for n = 1, 2 do
    for _, text in ipairs(redis.call('ZRANGEBYSCORE', KEYS[n], '-inf', time[1], 'LIMIT', 0, tonumber(ARGV[1]))) do
        redis.call('ZREM', KEYS[n], text)
        redis.call('RPUSH', KEYS[3], text)
        redis.call('RPUSH', KEYS[4], '1')
    end
    local head = redis.call('ZRANGE', KEYS[n], 0, 0, 'WITHSCORES')[2]
    if head then
        local left = math.max(0, tonumber(head) * 1000 - now_ms)
        if wait_ms < 0 or left < wait_ms then wait_ms = left end
    end
end
return wait_ms
