-- Moves elements that are due to the destination of a Redisson delayed queue.
-- KEYS: zset of due times, list of elements, destination list, quarantine list
-- ARGV: most elements to move
-- Returns {moved, quarantined, milliseconds until the next element is due, or -1}.
-- To find an element in the list takes time linear in its length, so that long lists are moved in smaller steps.
-- An element that is neither in the present nor in the old format would stop Redisson's own movers: it is set aside.
local function value_of(element)
    local function length_at(first)
        if #element < first + 7 then return -1 end
        local length, factor = 0, 1
        for n = first, first + 7 do
            length = length + string.byte(element, n) * factor
            factor = factor * 256
        end
        return length
    end
    if string.byte(element, 1) == 8 and length_at(10) == #element - 17 then return string.sub(element, 18) end
    if length_at(9) == #element - 16 then return string.sub(element, 17) end
    return nil
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local most = math.max(1, math.min(tonumber(ARGV[1]), math.floor(1000000 / (redis.call('LLEN', KEYS[2]) + 1))))
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, most)
local moved, quarantined = 0, 0
for _, element in ipairs(due) do
    local value = value_of(element)
    redis.call('ZREM', KEYS[1], element)
    redis.call('LREM', KEYS[2], 1, element)
    if value then
        redis.call('RPUSH', KEYS[3], value)
        moved = moved + 1
    else
        redis.call('RPUSH', KEYS[4], element)
        quarantined = quarantined + 1
    end
end
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {moved, quarantined, head and math.max(0, tonumber(head) - now_ms) or -1}
