-- Give a leased job back: it waits again, or ends.
-- Modules: keys header queue endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 id · 3 fence · 4 delay_ms · 5 error ('' keeps the last one)
-- Returns: packed Moved (released, dead or expired), false if the lease is lost
-- Touches: leases wait tries jobs info dead ttl meta agenda totals

local now, id = q.clock(ARGV[1]), ARGV[2]
q.begin()
local job, expires = q.held_lease(id, ARGV[3])
if not job then
  return false
end
local before = q.earliest()
local moved = q.end_lease(id, job, expires, now, now + tonumber(ARGV[4]), RELEASED)
if ARGV[5] ~= '' and not q.hdels[q.jobs] then
  q.set_error(id, ARGV[5])
end
q.commit()
q.wake(before)
return moved
