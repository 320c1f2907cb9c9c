-- Bring dead jobs back: ready now, with new tries and ttl.
-- Modules: keys header queue find endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 ttl_ms · 3 tries ('' keeps each job's own) · 4 how many of the longest dead ('' for the ids
--   that follow) · 5.. ids
-- Returns: { id, packed Moved (respawned).. }; '' for a Moved: the job cannot be read and was set aside
-- Touches: dead wait jobs tries info ttl meta agenda damaged totals

local now, age, allowed = q.clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
q.begin()
local before = q.earliest()
local ids = ARGV[4] == '' and { unpack(ARGV, 5) } or call('ZRANGE', q.dead, 0, ARGV[4] - 1)
local records, answer, done = q.fetch(q.tries, ids), {}, {}
for i = 1, #ids do
  local id, record = ids[i], records[i]
  if ARGV[4] ~= '' and not q.is_record(record) then
    q.zrem(q.dead, id)
    q.set_aside(id, call('HGET', q.jobs, id), record, answer)
  elseif q.is_record(record) and byte(record) > LEASED and not done[id] then
    local _, born, attempt, _, old_allowed, priority = unpack_struct(RECORD, record)
    local expires = age > 0 and now + age or 0
    done[id] = true
    q.zrem(q.dead, id)
    q.hset(q.tries, id, pack(RECORD, WAITING, born, attempt, 0, allowed or old_allowed, priority, now, expires))
    if q.informed > 0 then
      q.set_error(id, '')
    end
    q.add_waiting(id, priority, now, expires)
    q.count(N_RESPAWNED)
    answer[#answer + 1] = id
    answer[#answer + 1] = pack(MOVED, RESPAWNED, NO_REASON, born, attempt, now, 0)
  end
end
q.commit()
q.wake(before)
return answer
