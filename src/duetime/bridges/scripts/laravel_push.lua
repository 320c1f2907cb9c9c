-- Adds payloads to a Laravel queue.
-- KEYS: ready list, notify list, delayed zset
-- ARGV: pairs of (when, payload). when: '' for now, '+SECONDS' for a delay, or the epoch second at which it is due
-- Returns nothing. Due times are rounded up to Laravel's whole seconds, so that no job is early.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
for n = 1, #ARGV, 2 do
    local when, payload = ARGV[n], ARGV[n + 1]
    if when == '' then
        redis.call('RPUSH', KEYS[1], payload)
        redis.call('RPUSH', KEYS[2], '1')
    elseif string.sub(when, 1, 1) == '+' then
        redis.call('ZADD', KEYS[3], math.ceil(now + tonumber(string.sub(when, 2))), payload)
    else
        redis.call('ZADD', KEYS[3], math.ceil(tonumber(when)), payload)
    end
end
