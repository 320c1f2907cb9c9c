-- Change when waiting jobs are due.
-- Modules: keys header queue find
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 '+delay_ms' or due_at · 4.. ids
-- Returns: per id a packed Moved (rescheduled), 'r' running, 'd' dead, 'l' expires before due, or false; fewer answers
--   than ids when the bytes were read
-- Touches: wait ttl meta agenda

local now, budget, when = q.clock(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
q.begin()
local before = q.earliest()
local due = byte(when) == 43 and now + tonumber(sub(when, 2)) or tonumber(when)
local ids = { unpack(ARGV, 4) }
local found, reached = q.find(ids, now, budget)
local answers = {}
for i = 1, reached do
  local id, job = ids[i], found[i]
  if not job then
    answers[i] = false
  elseif job[1] ~= WAITING then
    answers[i] = job[1] == LEASED and 'r' or 'd'
  elseif job[8] > 0 and due > job[8] then
    answers[i] = 'l'
  else
    q.remove_waiting(id, job[6], job[8])
    q.add_waiting(id, job[6], due, job[8])
    answers[i] = pack(MOVED, RESCHEDULED, NO_REASON, job[2], job[3], due, 0)
  end
end
q.commit()
q.wake(before)
return answers
