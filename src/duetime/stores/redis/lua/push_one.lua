-- Add one plain job to a queue about which nothing is unusual: what push does then, in a third of the time.
-- Modules: keys
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 id · 3 body · 4 the first byte of the header · 5 what follows born in the header · 6 delay_ms ·
--   7 ttl_ms, 0 or at least delay_ms
-- Returns: { now, born }; or nothing, if this job or this queue needs all of push; or 0, if it needs push this time,
--   and will not when that has run. Nothing was changed then
-- Touches: jobs wait meta agenda totals

local now, id, delay, lasts = q.clock(ARGV[1]), ARGV[2], tonumber(ARGV[6]), tonumber(ARGV[7])
local meta = call('HMGET', q.meta, 'rules', 'state')
local state, due = meta[2], now + delay
local has_rules = meta[1] and string.find(meta[1], '[^%z]')
if has_rules or call('EXISTS', q.wait[1], q.wait[3]) > 0 then -- or jobs of other priorities
  return nil
end
if not state or #state ~= COUNTED_STATE or not call('ZSCORE', q.agenda, q.name) then -- a new queue
  return 0
end
local floor, latest, swept, slack, largest, day, accepted = unpack_struct(STATE .. 'I4I6', state)
if now <= floor or now < EPOCH or day ~= math.floor(now / DAY) or lasts > 0 and due <= swept then
  return 0
end
local first = call('ZRANGE', q.wait[2], 0, 0, 'WITHSCORES')[2]
local value = ARGV[4] .. pack('>I5', now - EPOCH) .. ARGV[5] .. ARGV[3]
if call('HSETNX', q.jobs, id, value) == 0 then -- the first write, and the one that a full Redis refuses
  return 0
end
call('ZADD', q.wait[2], due, id)
if lasts > 0 then
  slack = math.min(slack, lasts - delay)
  call('ZADD', q.agenda, 'LT', now + lasts + 1, q.name)
end
state = pack(STATE, floor, math.max(latest, now), swept, slack, math.max(largest, #value)) .. sub(state, 41, 44)
  .. pack('>I6', accepted + 1) .. sub(state, 51)
call('HSET', q.meta, 'state', state)
if not first or due < tonumber(first) then
  redis.pcall('PUBLISH', 'dt:wake', q.name .. ' ' .. q.text(due))
end
return { now, now }
