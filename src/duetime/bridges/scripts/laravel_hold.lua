-- Moves jobs out of a Laravel queue into a batch of their own: ready ones first, then delayed ones by their due time,
-- then reserved ones whose reservation has ended.
-- KEYS: ready list, delayed zset, notify list, zset of batches, list of the batch, reserved zset
-- ARGV: name of the new batch, most jobs, bytes after which no further job is moved
-- Returns the name of the batch: one that was left behind if there is one, else a new one; '' if there is nothing to
-- hold. The list of a batch has pairs of (due time in ms, payload).
local left = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
if left then return left end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local jobs, bytes = 0, 0
while jobs < tonumber(ARGV[2]) and bytes < tonumber(ARGV[3]) do
    local due_ms, text = now_ms, redis.call('LPOP', KEYS[1])
    if text then
        redis.call('LPOP', KEYS[3])
    else
        local head = redis.call('ZPOPMIN', KEYS[2])
        if not head[1] then
            head = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', time[1], 'WITHSCORES', 'LIMIT', 0, 1)
            if not head[1] then break end
            redis.call('ZREM', KEYS[6], head[1])
        end
        due_ms, text = tonumber(head[2]) * 1000, head[1]
    end
    redis.call('RPUSH', KEYS[5], string.format('%.0f', due_ms), text)
    jobs, bytes = jobs + 1, bytes + #text
end
if jobs == 0 then return '' end
redis.call('ZADD', KEYS[4], now_ms, ARGV[1])
return ARGV[1]
