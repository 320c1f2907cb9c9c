-- Raise the counts of joins to at least the given ones.
-- Modules: keys queue
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2.. per join: name · count · ms for which it goes on counting
-- Returns: nothing
-- Touches: join

local now = q.clock(ARGV[1])
q.begin()
-- Redis only cleans up; a given clock may go slower than Redis's own.
local spare = ARGV[1] == '' and 1 or 3600000
for i = 2, #ARGV, 3 do
  local key, count, left = prefix .. ':join:' .. ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local kept = redis.pcall('GET', key) -- foreign data counts as nothing, and goes
  if type(kept) == 'string' and #kept == 16 then
    local until_at, counted = unpack_struct('>I8I8', kept)
    if until_at > now then
      count, left = math.max(count, counted), math.max(left, until_at - now)
    end
  end
  call('SET', key, pack('>I8I8', now + left, count), 'PX', q.text(left + spare))
end
return false
