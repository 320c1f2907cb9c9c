-- Undo a delivery: the job waits where it was, or for a while, and the delivery does not count.
-- Modules: keys header queue endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 id · 3 fence · 4 delay_ms or '' for the old due_at
-- Returns: packed Moved (given_back, expired or dead), false if the lease is lost
-- Touches: leases wait tries jobs info dead ttl meta agenda totals

local now, id = q.clock(ARGV[1]), ARGV[2]
q.begin()
local job, expires = q.held_lease(id, ARGV[3])
if not job then
  return false
end
local before = q.earliest()
job[3] = job[3] - 1
local due = ARGV[4] == '' and job[6] or now + tonumber(ARGV[4])
local moved = q.end_lease(id, job, expires, now, due, GIVEN_BACK)
q.commit()
q.wake(before)
return moved
