-- Add to a counter, and clear away some whose life is over.
-- KEYS: 1 the registry's prefix · 2 its version
-- ARGV: 1 now or '' · 2 name · 3 by how much (0 only reads) · 4 life_ms of a new counter (0 for no end) · 5 how many to
--   clear away
-- Returns: { value, milliseconds left (0 for no end) }
-- Touches: counters lives

local counters, lives = KEYS[1] .. ':counters', KEYS[1] .. ':lives'
local now, by, life = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local value = tonumber(redis.call('HGET', counters, ARGV[2]))
local ends = tonumber(redis.call('ZSCORE', lives, ARGV[2]))
if value and ends and ends <= now then
  value, ends = nil, nil
end
if by == 0 then
  return { value or 0, ends and ends - now or 0 }
end
local over = redis.call('ZRANGEBYSCORE', lives, '-inf', now, 'LIMIT', 0, ARGV[5])
redis.call('ZREM', lives, ARGV[2], unpack(over))
if #over > 0 then
  redis.call('HDEL', counters, unpack(over))
end
if not value then
  value, ends = 0, life > 0 and now + life or nil
end
if ends then
  redis.call('ZADD', lives, ends, ARGV[2])
end
redis.call('HSET', counters, ARGV[2], string.format('%.0f', value + by))
return { value + by, ends and ends - now or 0 }
