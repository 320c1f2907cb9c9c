-- Undo deliveries: the jobs wait where they were, or for a while, and the deliveries do not count.
-- Modules: keys header queue endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2.. per lease: its id, which occurs once · its fence · delay_ms or '' for the old due_at
-- Returns: per lease a packed Moved (given_back, expired or dead), false if it is lost
-- Touches: leases wait tries jobs info dead ttl meta agenda totals

local now, moved = q.clock(ARGV[1]), {}
q.begin()
local before = q.earliest()
for i = 2, #ARGV, 3 do
  local id, delay = ARGV[i], ARGV[i + 2]
  local job, expires = q.held_lease(id, ARGV[i + 1])
  if job then
    job[3] = job[3] - 1
    local due = delay == '' and job[6] or now + tonumber(delay)
    moved[#moved + 1] = q.end_lease(id, job, expires, now, due, GIVEN_BACK)
  else
    moved[#moved + 1] = false
  end
end
q.commit()
q.wake(before)
return moved
