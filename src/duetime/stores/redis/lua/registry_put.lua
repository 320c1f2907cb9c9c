-- Write a record of the registry.
-- KEYS: 1 the registry's prefix · 2 its version
-- ARGV: 1 kind · 2 key · 3 value · 4 the version it must have now ('' for any, 0 for none)
-- Returns: { 1, new version }, or { 0, present version } when that is another one
-- Touches: records changes deleted version

local records, changes = KEYS[1] .. ':records:' .. ARGV[1], KEYS[1] .. ':changes'
local present = redis.call('HGET', records, ARGV[2])
local version = present and struct.unpack('>I8', present) or 0
if ARGV[4] ~= '' and tonumber(ARGV[4]) ~= version then
  return { 0, version }
end
redis.call('ZCARD', changes)
redis.call('ZCARD', KEYS[1] .. ':deleted')
local new = tonumber(redis.call('GET', KEYS[2]) or 0) + 1
redis.call('HSET', records, ARGV[2], struct.pack('>I8', new) .. ARGV[3])
redis.call('ZREM', KEYS[1] .. ':deleted', ARGV[1] .. '\0' .. ARGV[2])
redis.call('ZADD', changes, new, ARGV[1] .. '\0' .. ARGV[2])
redis.call('SET', KEYS[2], new)
redis.pcall('PUBLISH', 'dt:registry', new)
return { 1, new }
