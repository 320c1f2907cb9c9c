-- Moves elements out of a Redisson queue into a batch of their own: values of the destination first, then waiting
-- elements in the order of their list, which needs no search, then those that are only in the zset. Begins with hold.lua.
-- KEYS: zset of due times, list of elements, destination list
-- ARGV from 3: most elements, bytes after which no further element is moved
-- The list of a batch has triples of (due time in ms, 'value' or 'element', bytes).
local bytes = 0
while jobs < tonumber(ARGV[3]) and bytes < tonumber(ARGV[4]) do
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
    add(due_ms, kind, found)
    bytes = bytes + #found
end
return answer(0)
