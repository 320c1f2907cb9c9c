-- What was written to the registry after a version, a page at a time.
-- KEYS: 1 the registry's prefix · 2 its version
-- ARGV: 1 version · 2 how many changes
-- Returns: { present version, version of the last deletion that is no longer remembered, then kind .. NUL .. key,
--   version, record or false for each change by version }
-- Touches: nothing

local changed = redis.call('ZRANGEBYSCORE', KEYS[1] .. ':changes', '(' .. ARGV[1], '+inf', 'WITHSCORES',
  'LIMIT', 0, ARGV[2])
local version, forgotten = redis.call('GET', KEYS[2]) or 0, redis.call('GET', KEYS[1] .. ':forgotten') or 0
local answer = { assert(tonumber(version)), assert(tonumber(forgotten)) }
for i = 1, #changed, 2 do
  local kind, key = string.match(changed[i], '^(%Z*)%z(.*)$')
  local n = #answer
  answer[n + 1], answer[n + 2] = changed[i], tonumber(changed[i + 1])
  answer[n + 3] = redis.call('HGET', KEYS[1] .. ':records:' .. kind, key)
end
return answer
