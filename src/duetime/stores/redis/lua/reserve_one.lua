-- Lease the first ready job of a queue about which nothing is unusual: what reserve does for one job, in half the time.
-- Modules: keys header
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 ttr_ms
-- Returns: { now, next_at or false, id, record, header + body }, or without the last three if no job is ready; or
--   nothing, if this queue needs all of reserve. Nothing was changed then
-- Touches: wait leases tries meta agenda totals

local now, meta = q.clock(ARGV[1]), call('HMGET', q.meta, 'rules', 'state')
local state = meta[2]
local has_rules = meta[1] and string.find(meta[1], '[^%z]')
if has_rules or not state or #state ~= COUNTED_STATE or unpack_struct('>I4', state, 41) ~= math.floor(now / DAY)
  or call('EXISTS', q.info, q.ttl, q.damaged, q.wait[1], q.wait[3]) > 0 then
  return nil
end
local answer = q.first_delivery(now)
local id = answer and answer[3]
if not id then
  return answer
end
local wake_at = call('ZSCORE', q.agenda, q.name)
if not wake_at or call('ZCARD', q.leases) < 0 then
  return nil
end
local lease_end = now + ARGV[2]
call('ZREM', q.wait[2], id)
call('HSET', q.tries, id, answer[4])
call('ZADD', q.leases, q.text(lease_end), id)
call('HSET', q.meta, 'state', sub(state, 1, 50) .. pack('>I6', unpack_struct('>I6', state, 51) + 1) .. sub(state, 57))
if lease_end < tonumber(wake_at) then
  call('ZADD', q.agenda, q.text(lease_end), q.name)
end
return answer
