-- Take back leases that ran out and end expired jobs of one queue, and put it on the agenda anew.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 jobs to move · 3 bytes of values to read
-- Returns: { now, when to come again or false, id, packed Moved (lease_expired, dead, expired).. }
--   Error DAMAGED: a lease has no record
-- Touches: leases wait tries jobs info dead ttl meta agenda

local now, limit, budget = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
begin()
local before = earliest()
local answer = { now, false }

local caught_up = sweep(now, limit, budget)
commit()

local lapsed = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, limit)
local records = fetch(tries, lapsed)
for i = 1, #lapsed do
  if not records[i] then
    error('DAMAGED ' .. queue .. ': the leased job ' .. lapsed[i] .. ' has no record', 0)
  end
  local _, born, attempt, used, allowed, priority, due, expires = unpack_struct(RECORD, records[i])
  local job = { born, attempt, used, allowed, priority, due }
  answer[#answer + 1] = lapsed[i]
  answer[#answer + 1] = settle(lapsed[i], job, expires, now, now, LEASE_EXPIRED)
end

local stale = call('ZRANGEBYSCORE', ttl, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, limit - #lapsed)
local found, reached = find(stale, 0, budget)
for i = 1, reached do
  local id, job = stale[i], found[i]
  zrem(ttl, id)
  if job then
    local due = tonumber(call('ZSCORE', wait[job[6]], id))
    zrem(wait[job[6]], id)
    answer[#answer + 1] = id
    answer[#answer + 1] = expire(id, { job[2], job[3], job[4], job[5], job[6], due }, now)
  end
end
commit()
announce(before)

-- The next lease end or expiry; for jobs that the sweep has not met, the earliest at which one could expire.
local again = caught_up and huge or now
local head = call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
again = math.min(again, tonumber(head or huge))
head = call('ZRANGE', ttl, 0, 0, 'WITHSCORES')[2]
again = math.min(again, tonumber(head or huge) + 1)
if slack < huge then
  local unmet = huge
  for priority = 1, 3 do
    head = call('ZRANGEBYSCORE', wait[priority], '(' .. string.format('%.0f', swept), '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)[2]
    unmet = math.min(unmet, tonumber(head or huge))
  end
  if unmet == huge and caught_up then
    call('HDEL', meta, 'slack')
  end
  again = math.min(again, unmet + slack + 1)
end
begin_with_removal()
call('ZADD', agenda, again == huge and '+inf' or again, queue)
answer[2] = again < huge and again
return answer
