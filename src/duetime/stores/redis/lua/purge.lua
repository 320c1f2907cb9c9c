-- Remove jobs of some states, oldest first within each; or all of them, and the queue itself.
-- Modules: keys header queue find sweep
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 jobs to remove ('' for everything) · 3 as many as are wanted in all ('' for all there are) ·
--   4 jobs to read one by one · 5.. states
-- Returns: { now, number removed, 1 if more are wanted and there else 0 }
-- Touches: jobs wait tries info leases dead ttl meta agenda damaged floors totals

local now = q.clock(ARGV[1])
q.begin()
q.forgotten_floor()
q.floor = math.max(q.floor, now)

-- No born of a removed job may come again. It can only do so after the clock was set back.
local function raise_floor(ids)
  if q.latest > q.floor then
    for _, job in ipairs((q.find(ids, 0, huge))) do
      q.floor = math.max(q.floor, job and job[2] or 0)
    end
  end
end

if ARGV[2] == '' then
  if q.held <= tonumber(ARGV[4]) then
    raise_floor(call('HKEYS', q.jobs))
  else
    q.floor = math.max(q.floor, q.latest)
  end
  call('UNLINK', q.damaged, q.jobs, q.tries, q.info, q.leases, q.dead, q.ttl, q.wait[1], q.wait[2], q.wait[3])
  q.damaged_count = 0
  if not q.kept then
    call('UNLINK', q.totals)
    q.counted, q.counted_day = nil, nil
  end
  if q.is_idle() then
    q.forget_queue()
  else
    call('HDEL', q.meta, 'expired', 'sweeping')
    q.latest, q.swept, q.slack, q.largest = 0, 0, NO_SLACK, 0
    q.commit()
    call('ZADD', q.agenda, '+inf', q.name)
  end
  return { now, q.held, 0 }
end

local left, found, removed, text = tonumber(ARGV[2]), 0, 0, q.text(now)

local function remove(key, ids)
  left, removed = left - #ids, removed + #ids
  raise_floor(ids)
  for i = 1, #ids do
    q.zrem(key, ids[i])
    q.forget(ids[i], 0)
    if q.expiring > 0 then
      q.zrem(q.ttl, ids[i])
    end
  end
end

-- Delayed jobs are in three sets, and are ordered by due_at across them.
local function remove_delayed()
  local lists, at = {}, { 1, 1, 1 }
  for priority = 1, 3 do
    lists[priority] = call('ZRANGEBYSCORE', q.wait[priority], '(' .. text, '+inf', 'WITHSCORES', 'LIMIT', 0, left)
  end
  while left > 0 do
    local best, due, id
    for priority = 1, 3 do
      local list, i = lists[priority], at[priority]
      local score = tonumber(list[i + 1])
      if list[i] and (not best or score < due or (score == due and q.is_before(list[i], id))) then
        best, due, id = priority, score, list[i]
      end
    end
    if not best then
      break
    end
    at[best] = at[best] + 2
    remove(q.wait[best], { id })
  end
end

for i = 5, #ARGV do
  local state = ARGV[i]
  if state == 'leased' or state == 'dead' then
    local key = state == 'leased' and q.leases or q.dead
    found = found + call('ZCARD', key)
    remove(key, left > 0 and call('ZRANGE', key, 0, left - 1) or {})
  else
    for priority = 1, 3 do
      if state == 'ready' then
        found = found + call('ZCOUNT', q.wait[priority], '-inf', text)
        remove(q.wait[priority], call('ZRANGEBYSCORE', q.wait[priority], '-inf', text, 'LIMIT', 0, left))
      else
        found = found + call('ZCOUNT', q.wait[priority], '(' .. text, '+inf')
      end
    end
    if state == 'delayed' then
      remove_delayed()
    end
  end
end
if q.held == 0 and q.is_idle() and not call('ZSCORE', q.agenda, q.name) then
  q.forget_queue() -- there is no such queue, and asking for it makes none
end
q.begin_with_removal()
q.commit()
return { now, removed, removed < math.min(found, tonumber(ARGV[3]) or huge) and 1 or 0 }
