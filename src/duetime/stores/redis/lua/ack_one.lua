-- Finish one job whose lease is held: what ack does for it, in half the time.
-- Modules: keys
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 the born of the lease · 3 its fence · 4 its id
-- Returns: 1; or nothing, if this lease or this queue needs all of ack. Nothing was changed then
-- Touches: leases jobs tries meta agenda totals

local now, born, fence, id = q.clock(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local meta = call('HMGET', q.meta, 'rules', 'state')
local state, record, held = meta[2], call('HGET', q.tries, id), call('HLEN', q.jobs)
if not record or sub(record, 1, #fence) ~= fence or not state or #state ~= COUNTED_STATE then
  return nil
end
local floor, latest, _, _, _, day = unpack_struct(STATE .. 'I4', state)
if day ~= math.floor(now / DAY) or call('EXISTS', q.info, q.damaged) > 0 or call('ZCARD', q.leases) == 0 then
  return nil
end
-- Without its last job a queue is forgotten some time later, unless it has rules.
local is_last = held == 1 and not (meta[1] and string.find(meta[1], '[^%z]'))
local wake_at = is_last and tonumber(call('ZSCORE', q.agenda, q.name) or huge)
call('ZREM', q.leases, id)
call('HDEL', q.jobs, id)
call('HDEL', q.tries, id)
if is_last then
  latest = math.max(latest, now)
  if latest + IDLE < wake_at then
    call('ZADD', q.agenda, q.text(latest + IDLE), q.name)
  end
end
call('HSET', q.meta, 'state', pack('>I8I8', math.max(floor, born), latest) .. sub(state, 17, 56)
  .. pack('>I6', unpack_struct('>I6', state, 57) + 1) .. sub(state, 63))
return 1
