-- Moves elements out of a Redisson queue into a batch of their own: values of the destination first, then waiting
-- elements in the order of their list, which needs no search.
-- KEYS: zset of due times, list of elements, destination list, zset of batches, list of the batch
-- ARGV: name of the new batch, most elements
-- Returns the name of the batch: one that was left behind if there is one, else a new one; '' if there is nothing to
-- hold. The list of a batch has triples of (due time in ms, 'value' or 'element', bytes).
local left = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
if left then return left end
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local held = {}
local function hold(due, kind, bytes)
    held[#held + 1] = due
    held[#held + 1] = kind
    held[#held + 1] = bytes
end
local room = tonumber(ARGV[2])
while room > 0 do
    local value = redis.call('LPOP', KEYS[3])
    if not value then break end
    hold(now_ms, 'value', value)
    room = room - 1
end
while room > 0 do
    local element = redis.call('LPOP', KEYS[2])
    if not element then break end
    local due = redis.call('ZSCORE', KEYS[1], element)
    redis.call('ZREM', KEYS[1], element)
    hold(due and string.format('%.0f', tonumber(due)) or now_ms, 'element', element)
    room = room - 1
end
if room > 0 and redis.call('LLEN', KEYS[2]) == 0 then
    local rest = redis.call('ZRANGE', KEYS[1], 0, room - 1, 'WITHSCORES')
    for n = 1, #rest, 2 do
        redis.call('ZREM', KEYS[1], rest[n])
        hold(string.format('%.0f', tonumber(rest[n + 1])), 'element', rest[n])
    end
end
if #held == 0 then return '' end
redis.call('ZADD', KEYS[4], now_ms, ARGV[1])
for first = 1, #held, 600 do
    redis.call('RPUSH', KEYS[5], unpack(held, first, math.min(first + 599, #held)))
end
return ARGV[1]
