-- Moves elements out of a Redisson queue into a batch of their own: values of the destination first, then waiting
-- elements in the order of their list, which needs no search, then those that are only in the zset.
-- KEYS: zset of due times, list of elements, destination list, zset of batches, list of the batch
-- ARGV: name of the new batch, most elements, bytes after which no further element is moved
-- Returns the name of the batch: one that was left behind if there is one, else a new one; '' if there is nothing to
-- hold. The list of a batch has triples of (due time in ms, 'value' or 'element', bytes).
local left = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
if left then return left end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local elements, bytes = 0, 0
while elements < tonumber(ARGV[2]) and bytes < tonumber(ARGV[3]) do
    local due_ms, kind, found = now_ms, 'value', redis.call('LPOP', KEYS[3])
    if not found then
        kind, found = 'element', redis.call('LPOP', KEYS[2])
        if found then
            due_ms = redis.call('ZSCORE', KEYS[1], found) or now_ms
            redis.call('ZREM', KEYS[1], found)
        else
            local head = redis.call('ZPOPMIN', KEYS[1])
            if not head[1] then break end
            found, due_ms = head[1], head[2]
        end
    end
    redis.call('RPUSH', KEYS[5], string.format('%.0f', tonumber(due_ms)), kind, found)
    elements, bytes = elements + 1, bytes + #found
end
if elements == 0 then return '' end
redis.call('ZADD', KEYS[4], now_ms, ARGV[1])
return ARGV[1]
