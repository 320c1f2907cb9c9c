-- Undo a delivery: the job waits where it was, and the delivery does not count.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 id · 3 fence
-- Returns: packed Moved (given_back, expired or dead), false if the lease is lost
-- Touches: leases wait tries jobs info dead ttl meta agenda

local now, id = clock(ARGV[1]), ARGV[2]
begin()
local job, expires = leased(id, ARGV[3])
if not job then
  return false
end
local before = earliest()
job[3] = job[3] - 1
local moved = settle(id, job, expires, now, job[6], GIVEN_BACK)
commit()
announce(before)
return moved
