-- Finish one job whose lease is held, then lease the first ready job of the queue: ack_one and reserve_one in one run.
-- Modules: keys header
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 the born of the lease · 3 its fence · 4 its id · 5 ttr_ms
-- Returns: { now, next_at or false, id, record, header + body }, or without the last three if no job is ready; or
--   nothing, if this lease or this queue needs all of ack or reserve. Nothing was changed then
-- Touches: leases jobs tries wait meta agenda totals

local now, fence, done = q.clock(ARGV[1]), ARGV[3], ARGV[4]
local meta = call('HMGET', q.meta, 'rules', 'state')
local state, lease, held = meta[2], call('HGET', q.tries, done), call('HLEN', q.jobs)
local has_rules = meta[1] and string.find(meta[1], '[^%z]')
if has_rules or not lease or sub(lease, 1, #fence) ~= fence or not state or #state ~= COUNTED_STATE then
  return nil
end
local floor, latest, _, _, _, day, _, delivered, acked = unpack_struct(STATE .. 'I4I6I6I6', state)
local wake_at = tonumber(call('ZSCORE', q.agenda, q.name) or nil)
if day ~= math.floor(now / DAY) or not wake_at or call('ZCARD', q.leases) == 0
  or call('EXISTS', q.info, q.ttl, q.damaged, q.wait[1], q.wait[3]) > 0 then
  return nil
end
local answer = q.first_delivery(now)
if not answer then
  return nil
end
local id = answer[3]
local next_end = id and now + ARGV[5] or huge
call('ZREM', q.leases, done)
call('HDEL', q.jobs, done)
call('HDEL', q.tries, done)
if id then
  call('ZREM', q.wait[2], id)
  call('HSET', q.tries, id, answer[4])
  call('ZADD', q.leases, q.text(next_end), id)
  delivered = delivered + 1
elseif held == 1 then -- without its last job a queue is forgotten some time later
  latest = math.max(latest, now)
  next_end = latest + IDLE
end
call('HSET', q.meta, 'state', pack('>I8I8', math.max(floor, tonumber(ARGV[2])), latest) .. sub(state, 17, 50)
  .. pack('>I6I6', delivered, acked + 1) .. sub(state, 63))
if next_end < wake_at then
  call('ZADD', q.agenda, q.text(next_end), q.name)
end
return answer
