-- Remove a record of the registry.
-- KEYS: 1 the registry's prefix · 2 its version
-- ARGV: 1 kind · 2 key · 3 the version it must have now ('' for any, 0 for none) · 4 how many deletions to remember
-- Returns: { 1, new version }, { 1, 0 } when there was none, or { 0, present version } when that is another one
-- Touches: records changes deleted forgotten version

local records, changes = KEYS[1] .. ':records:' .. ARGV[1], KEYS[1] .. ':changes'
local deleted, name = KEYS[1] .. ':deleted', ARGV[1] .. '\0' .. ARGV[2]
local present = redis.call('HGET', records, ARGV[2])
local version = present and struct.unpack('>I8', present) or 0
if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= version then
  return { 0, version }
end
if not present then
  return { 1, 0 }
end
redis.call('ZCARD', changes)
local too_many = redis.call('ZCARD', deleted) + 1 - tonumber(ARGV[4])
local new = tonumber(redis.call('GET', KEYS[2]) or 0) + 1
redis.call('HDEL', records, ARGV[2])
if too_many > 0 then
  local oldest = redis.call('ZRANGE', deleted, 0, too_many - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    redis.call('ZREM', deleted, oldest[i])
    redis.call('ZREM', changes, oldest[i])
    redis.call('SET', KEYS[1] .. ':forgotten', oldest[i + 1])
  end
end
redis.call('ZADD', changes, new, name)
redis.call('ZADD', deleted, new, name)
redis.call('SET', KEYS[2], new)
redis.pcall('PUBLISH', 'dt:registry', new)
return { 1, new }
