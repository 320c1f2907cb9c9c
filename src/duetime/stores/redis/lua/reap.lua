-- Take back leases that ran out and end expired jobs of one queue, and put it on the agenda anew; or forget the queue,
-- if it is empty and nobody has pushed to it for a while.
-- Modules: keys header queue find endings sweep totals
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 jobs to move · 3 bytes of values to read
-- Returns: { now, when to come again or false, id, packed Moved (lease_expired, dead, expired).. }; '' for a Moved: the
--   job cannot be read and was set aside
-- Touches: leases wait tries jobs info dead ttl meta agenda damaged floors totals

local now, limit, budget = q.clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
q.begin()
q.forgotten_floor()
local before = q.earliest()
local answer = { now, false }

local caught_up = q.sweep(now, limit, budget)
q.commit()

local lapsed = call('ZRANGEBYSCORE', q.leases, '-inf', now, 'LIMIT', 0, limit)
local records = q.fetch(q.tries, lapsed)
for i = 1, #lapsed do
  local id, record = lapsed[i], records[i]
  if q.is_record(record) then
    local _, born, attempt, used, allowed, priority, due, expires = unpack_struct(RECORD, record)
    local job = { born, attempt, used, allowed, priority, due }
    answer[#answer + 1] = id
    answer[#answer + 1] = q.end_lease(id, job, expires, now, now, LEASE_EXPIRED)
  else
    q.zrem(q.leases, id)
    q.set_aside(id, call('HGET', q.jobs, id), record, answer)
  end
end

local stale = call('ZRANGEBYSCORE', q.ttl, '-inf', '(' .. q.text(now), 'LIMIT', 0, limit - #lapsed)
local found, reached = q.find(stale, 0, budget)
for i = 1, reached do
  local id, job = stale[i], found[i]
  q.zrem(q.ttl, id)
  if job then
    local due = tonumber(call('ZSCORE', q.wait[job[6]], id) or 0)
    q.zrem(q.wait[job[6]], id)
    answer[#answer + 1] = id
    answer[#answer + 1] = q.expire(id, { job[2], job[3], job[4], job[5], job[6], due }, now)
  end
end
q.commit()
q.wake(before)

-- The next lease end or expiry; for jobs that the sweep has not met, the earliest at which one could expire.
local again = caught_up and huge or now
again = math.min(again, tonumber(call('ZRANGE', q.leases, 0, 0, 'WITHSCORES')[2] or huge))
again = math.min(again, tonumber(call('ZRANGE', q.ttl, 0, 0, 'WITHSCORES')[2] or huge) + 1)
q.begin_with_removal()
if q.slack < NO_SLACK then
  local unmet = huge
  for priority = 1, 3 do
    local due = call('ZRANGEBYSCORE', q.wait[priority], '(' .. q.text(q.swept), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    unmet = math.min(unmet, tonumber(due or huge))
  end
  again = math.min(again, unmet + q.slack + 1)
  if unmet == huge and caught_up then
    q.slack = NO_SLACK
    q.commit()
  end
end
if q.is_idle() then
  if q.latest + IDLE <= now then
    q.forget_queue()
    q.age_totals()
    return answer
  end
  again = math.min(again, q.latest + IDLE)
end
call('ZADD', q.agenda, 'XX', again == huge and '+inf' or again, q.name)
answer[2] = again < huge and again
return answer
