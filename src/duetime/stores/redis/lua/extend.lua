-- Renew a lease.
-- Modules: keys header queue endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 id · 3 fence · 4 ttr_ms
-- Returns: the new end, false if the lease is lost
-- Touches: leases agenda

local now, id = q.clock(ARGV[1]), ARGV[2]
q.begin()
if not q.held_lease(id, ARGV[3]) then
  return false
end
local lease_end = now + tonumber(ARGV[4])
q.next_end = lease_end
q.zrem(q.leases, id)
q.zadd(q.leases, lease_end, id)
q.commit()
return lease_end
