-- Take out jobs that wait or are dead, if they are as the caller saw them.
-- Modules: keys header queue find endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2.. per job: id · born · due_at (0 if dead) · reason (0: it is gone, else how it is dead) · error
-- Returns: packed Moved (cancelled, deleted, dead) or false per job
-- Touches: wait dead jobs tries info ttl meta agenda totals

local now = q.clock(ARGV[1])
q.begin()
local ids = {}
for at = 2, #ARGV, 5 do
  ids[#ids + 1] = ARGV[at]
end
local found = q.find(ids, now, huge)
local answers, done = {}, {}
for i = 1, #ids do
  local id, job, at = ids[i], found[i], 5 * i - 3
  local born, due = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local reason, failure = tonumber(ARGV[at + 3]), ARGV[at + 4]
  answers[i] = false
  if job and not done[id] and job[1] ~= LEASED and job[2] == born then
    local state, attempt, used, tries, priority, expires = job[1], job[3], job[4], job[5], job[6], job[8]
    local due_now = state == WAITING and tonumber(call('ZSCORE', q.wait[priority], id)) or 0
    if due_now == due and (state == WAITING or reason == 0) then
      done[id] = true
      if state == WAITING then
        q.remove_waiting(id, priority, expires)
      else
        q.zrem(q.dead, id)
      end
      if reason > 0 then
        answers[i] = q.die(id, { born, attempt, used, tries, priority, due }, now, reason + 1)
        if failure ~= '' then
          q.set_error(id, failure)
        end
      else
        q.forget(id, born)
        if state == WAITING then
          q.count(N_CANCELLED)
        end
        answers[i] = pack(MOVED, state == WAITING and CANCELLED or DELETED, NO_REASON, born, attempt, 0, 0)
      end
    end
  end
end
q.commit()
return answers
