-- Moves jobs out of a Laravel queue into a batch of their own: ready ones first, then delayed ones by their due time,
-- then reserved ones whose reservation has ended. Begins with hold.lua.
-- KEYS: ready list, delayed zset, notify list, reserved zset
-- ARGV from 3: most jobs, bytes after which no further job is moved
-- The list of a batch has pairs of (due time in ms, payload).
local bytes = 0
while jobs < tonumber(ARGV[3]) and bytes < tonumber(ARGV[4]) do
    local due_ms, text = now_ms, redis.call('LPOP', KEYS[1])
    if text then
        redis.call('LPOP', KEYS[3])
    else
        local head = redis.call('ZPOPMIN', KEYS[2])
        if not head[1] then
            head = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', time[1], 'WITHSCORES', 'LIMIT', 0, 1)
            if not head[1] then break end
            redis.call('ZREM', KEYS[4], head[1])
        end
        due_ms, text = tonumber(head[2]) * 1000, head[1]
    end
    add(due_ms, text)
    bytes = bytes + #text
end
return answer(0)
