-- Remove jobs by id from wherever they are.
-- Modules: keys header queue find
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 '1' if a consumer has finished them · 4.. ids
-- Returns: packed Moved (cancelled, acked, deleted) or false per id; fewer answers than ids when the bytes were read
-- Touches: wait leases dead jobs tries info ttl meta agenda totals

local now, budget = q.clock(ARGV[1]), tonumber(ARGV[2])
q.begin()
local ids = { unpack(ARGV, 4) }
local found, reached = q.find(ids, now, budget)
local answers, done = {}, {}
for i = 1, reached do
  local id, job = ids[i], found[i]
  answers[i] = false
  if job and not done[id] then
    local state, born, attempt, priority, expires = job[1], job[2], job[3], job[6], job[8]
    if state == WAITING then
      q.remove_waiting(id, priority, expires)
    else
      q.zrem(state == LEASED and q.leases or q.dead, id)
    end
    q.forget(id, born)
    local event, reason = CANCELLED, state == LEASED and IS_RUNNING or NO_REASON
    if state > LEASED then
      event = DELETED
    elseif ARGV[3] == '1' then
      event, reason = ACKED, UNFENCED
      q.count(N_ACKED)
    else
      q.count(N_CANCELLED)
    end
    answers[i] = pack(MOVED, event, reason, born, attempt, 0, 0)
    done[id] = true
  end
end
q.commit()
return answers
