-- Undo a delivery: the job waits where it was, and the delivery does not count.
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 id · 3 fence
-- Returns: packed Moved (given_back, expired or dead), false if the lease is lost
-- Touches: leases wait tries jobs info dead ttl meta agenda totals

local now, id = q.clock(ARGV[1]), ARGV[2]
q.begin()
local job, expires = q.leased(id, ARGV[3])
if not job then
  return false
end
local before = q.earliest()
job[3] = job[3] - 1
local moved = q.settle(id, job, expires, now, job[6], GIVEN_BACK)
q.commit()
q.announce(before)
return moved
