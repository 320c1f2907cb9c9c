-- Removes waiting elements from both keys of a Redisson delayed queue.
-- KEYS: zset of due times, list of elements
-- ARGV: packed elements
-- Returns how many were there.
local removed = 0
for _, element in ipairs(ARGV) do
    removed = removed + redis.call('ZREM', KEYS[1], element)
    redis.call('LREM', KEYS[2], 1, element)
end
return removed
