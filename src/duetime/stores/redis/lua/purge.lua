-- Remove jobs of some states, oldest first within each; or all at once, and the queue with them.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 jobs to remove ('' for everything) · 3 as many as are wanted in all ('' for all there are) ·
--   4.. states
-- Returns: { now, number removed, 1 if more are wanted and there else 0 }
-- Touches: jobs wait tries info leases dead ttl meta agenda

local STEP = 500 -- ids to look at one by one
local now = clock(ARGV[1])
begin()
floor = math.max(floor, now)

-- No born of a removed job may come again. Only a clock that was set back makes it worth a look.
local function raise_floor(ids)
  if latest > floor then
    for _, job in ipairs((find(ids, 0, huge))) do
      floor = math.max(floor, job and job[2] or 0)
    end
  end
end

if ARGV[2] == '' then
  if held <= STEP then
    raise_floor(call('HKEYS', jobs))
  else
    floor = math.max(floor, latest)
  end
  call('UNLINK', jobs, tries, info, leases, dead, ttl, wait[1], wait[2], wait[3])
  call('HDEL', meta, 'expired', 'swept', 'slack', 'sweeping', 'largest', 'latest')
  call('HSET', meta, 'floor', floor)
  if paused or strict or expired_to_dead or max_jobs > 0 or max_body > 0 then
    call('ZADD', agenda, '+inf', queue)
  else
    call('HDEL', meta, 'paused', 'strict', 'expired_to_dead', 'max_jobs', 'max_body')
    call('ZREM', agenda, queue)
    -- Only the floor is left, and only until the clock has passed it.
    call('PEXPIRE', meta, math.max(floor - now, 0) + 3600000)
  end
  return { now, held, 0 }
end

local left, found, removed = tonumber(ARGV[2]), 0, 0
local text = string.format('%.0f', now)

local function remove(key, ids)
  left, removed = left - #ids, removed + #ids
  raise_floor(ids)
  for i = 1, #ids do
    zrem(key, ids[i])
    hdel(jobs, ids[i])
    if recorded > 0 then hdel(tries, ids[i]) end
    if informed > 0 then hdel(info, ids[i]) end
    if expiring > 0 then zrem(ttl, ids[i]) end
  end
end

-- Delayed jobs stand in three sets and go by due_at across them.
local function remove_delayed()
  local lists, at = {}, { 1, 1, 1 }
  for priority = 1, 3 do
    lists[priority] = call('ZRANGEBYSCORE', wait[priority], '(' .. text, '+inf', 'WITHSCORES', 'LIMIT', 0, left)
  end
  while left > 0 do
    local best, due, id
    for priority = 1, 3 do
      local list, i = lists[priority], at[priority]
      local score = tonumber(list[i + 1])
      if list[i] and (not best or score < due or (score == due and before_in_bytes(list[i], id))) then
        best, due, id = priority, score, list[i]
      end
    end
    if not best then
      break
    end
    at[best] = at[best] + 2
    remove(wait[best], { id })
  end
end

for i = 4, #ARGV do
  local state = ARGV[i]
  if state == 'leased' or state == 'dead' then
    local key = state == 'leased' and leases or dead
    found = found + call('ZCARD', key)
    remove(key, left > 0 and call('ZRANGE', key, 0, left - 1) or {})
  else
    for priority = 1, 3 do
      if state == 'ready' then
        found = found + call('ZCOUNT', wait[priority], '-inf', text)
        remove(wait[priority], call('ZRANGEBYSCORE', wait[priority], '-inf', text, 'LIMIT', 0, left))
      else
        found = found + call('ZCOUNT', wait[priority], '(' .. text, '+inf')
      end
    end
    if state == 'delayed' then
      remove_delayed()
    end
  end
end
begin_with_removal()
commit()
return { now, removed, removed < math.min(found, tonumber(ARGV[3]) or huge) and 1 or 0 }
