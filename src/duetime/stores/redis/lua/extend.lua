-- Renew a lease.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 id · 3 fence · 4 ttr_ms
-- Returns: the new end, false if the lease is lost
-- Touches: leases agenda

local now, id = clock(ARGV[1]), ARGV[2]
begin()
if not leased(id, ARGV[3]) then
  return false
end
local lease_end = now + tonumber(ARGV[4])
next_end = lease_end
zrem(leases, id)
zadd(leases, lease_end, id)
commit()
return lease_end
