-- Send a leased job to the dead letters.
-- Modules: keys header queue endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 id · 3 fence · 4 error ('' keeps the last one)
-- Returns: packed Moved (dead), false if the lease is lost
-- Touches: leases dead tries info meta totals

local now, id = q.clock(ARGV[1]), ARGV[2]
q.begin()
local job = q.held_lease(id, ARGV[3])
if not job then
  return false
end
q.zrem(q.leases, id)
local moved = q.die(id, job, now, DEAD_KILLED)
if ARGV[4] ~= '' then
  q.set_error(id, ARGV[4])
end
q.commit()
return moved
