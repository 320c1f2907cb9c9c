-- Module queue: the queue's rules and state, and the plan of writes. A script calls begin() first, plans, and calls
-- commit(). Needs the module keys.

function q.read_rules(rules)
  local flags = 0
  q.max_jobs, q.max_body = 0, 0
  if rules then
    flags, q.max_jobs, q.max_body = unpack_struct(RULES, rules)
  end
  q.paused, q.strict, q.expired_to_dead = flags % 2 >= 1, flags % 4 >= 2, flags % 8 >= 4
  q.kept, q.offline = flags % 16 >= 8, flags % 32 >= 16
end

-- Every born of a new queue is above this.
function q.forgotten_floor()
  return tonumber(call('GET', q.floors) or 0) or 0
end

-- True for a queue without jobs, damaged entries and rules, which only its last push keeps from being forgotten.
function q.is_idle()
  local has_rules = q.paused or q.strict or q.expired_to_dead or q.kept or q.offline
  has_rules = has_rules or q.max_jobs > 0 or q.max_body > 0
  return not has_rules and q.damaged_count == 0 and call('HLEN', q.jobs) == 0
end

-- Removes the last keys of a queue but for its totals. No born of its jobs may come again, so its floor lives on in the
-- partition's.
function q.forget_queue()
  q.store_day()
  call('UNLINK', q.meta)
  call('ZREM', q.agenda, q.name)
  if q.floor > q.forgotten_floor() then
    call('SET', q.floors, q.text(q.floor))
  end
  q.old_state = q.packed_state() -- there is nothing to write any more
end

function q.packed_state()
  local state = pack(STATE, q.floor, q.latest, q.swept, q.slack, q.largest)
  return q.counted and state .. pack('>I4', q.counted_day) .. q.counted or state
end

-- The first step: reads the queue's rules and state, and errors if any of its keys holds a foreign type.
function q.begin()
  local meta = call('HMGET', q.meta, 'rules', 'state', 'sweeping')
  q.read_rules(meta[1])
  if meta[2] then
    q.floor, q.latest, q.swept, q.slack, q.largest = unpack_struct(STATE, meta[2])
    if #meta[2] == COUNTED_STATE then
      q.counted_day, q.counted = unpack_struct('>I4', meta[2], 41), sub(meta[2], 45)
    end
  else
    q.floor, q.latest, q.swept, q.slack, q.largest = q.forgotten_floor(), 0, 0, NO_SLACK, 0
  end
  q.old_state, q.sweeping = meta[2] or pack(STATE, q.floor, 0, 0, NO_SLACK, 0), meta[3]
  q.held, q.recorded, q.informed, q.expiring, q.damaged_count = call('HLEN', q.jobs), call('HLEN', q.tries), 0, 0, 0
  local wait = q.wait
  q.waiting = { 0, call('ZCARD', wait[2]), 0 }
  -- Most queues have none of these keys, and one command says so.
  if call('EXISTS', q.info, q.ttl, q.damaged, wait[1], wait[3]) > 0 then
    q.informed, q.expiring, q.damaged_count = call('HLEN', q.info), call('ZCARD', q.ttl), call('HLEN', q.damaged)
    q.waiting[1], q.waiting[3] = call('ZCARD', wait[1]), call('ZCARD', wait[3])
  end
  q.least_held = q.held -- a lower bound of the number of jobs
  q.found_jobs, q.found_leases, q.found_dead = q.held, call('ZCARD', q.leases), call('ZCARD', q.dead)
  call('ZCARD', q.agenda)
  q.day = math.floor(q.now / DAY)
  if q.counted_day ~= q.day then
    call('HLEN', q.totals)
  end
  q.begin_plan()
end

-- The earliest due_at of all that wait; huge if nothing does.
function q.earliest()
  local first = huge
  for priority = 1, 3 do
    if q.waiting[priority] > 0 then
      local due = call('ZRANGE', q.wait[priority], 0, 0, 'WITHSCORES')[2]
      if due and tonumber(due) < first then
        first = tonumber(due)
      end
    end
  end
  return first
end

-- One command over many arguments.
function q.variadic(command, key, arguments)
  local many = #arguments >= MANY and (command == 'ZADD' or command == 'HSET')
  if many then
    call(command, key, command == 'ZADD' and '+inf' or LONG, LONG)
  end
  for first = 1, #arguments, CHUNK do
    call(command, key, unpack(arguments, first, math.min(first + CHUNK - 1, #arguments)))
  end
  if many then
    call(command == 'ZADD' and 'ZREM' or 'HDEL', key, LONG)
  end
end

-- HMGET over many ids.
function q.fetch(key, ids)
  if #ids <= CHUNK then
    return #ids > 0 and call('HMGET', key, unpack(ids)) or {}
  end
  local values = {}
  for first = 1, #ids, CHUNK do
    local some = call('HMGET', key, unpack(ids, first, math.min(first + CHUNK - 1, #ids)))
    for i = 1, #some do
      values[first + i - 1] = some[i]
    end
  end
  return values
end

-- The plan: what to remove and what to add, by key; how many jobs expired; the next end for the agenda; what to count.
function q.begin_plan()
  q.zrems, q.hdels, q.zadds, q.hsets, q.expired, q.next_end, q.counted_now = {}, {}, {}, {}, 0, huge, nil
end

-- Plans that the totals rise.
function q.count(place, by)
  q.counted_now = q.counted_now or {}
  q.counted_now[place] = (q.counted_now[place] or 0) + (by or 1)
end

-- Adds what was counted to the totals of the day.
function q.write_counts()
  if q.counted_day ~= q.day then
    q.begin_day()
  end
  for place, by in pairs(q.counted_now) do
    local at = 6 * place - 5
    local sum = unpack_struct('>I6', q.counted, at) + by
    q.counted = sub(q.counted, 1, at - 1) .. pack('>I6', sum) .. sub(q.counted, at + 6)
  end
end

-- Moves the totals of the day in the state to those of the other days.
function q.store_day()
  if q.counted then
    call('HSET', q.totals, q.counted_day, q.counted)
    q.counted, q.counted_day = nil, nil
  end
end

-- The first event of a day: days that are no longer kept one by one go into day 0. Where there are no totals yet, the
-- jobs that were there before counting began are its first ones.
function q.begin_day()
  q.store_day()
  local days, base, old = call('HGETALL', q.totals), { 0, 0, 0, 0, 0, 0, 0, 0, 0 }, { '0' }
  q.counted, q.counted_day = NO_TOTALS, q.day
  for i = 1, #days, 2 do
    local day, packed = tonumber(days[i]), days[i + 1]
    if #packed == #NO_TOTALS and day == q.day then
      q.counted = packed
    elseif #packed == #NO_TOTALS and day and day <= q.day - TOTAL_DAYS then
      old[#old + 1] = days[i]
      local numbers = { unpack_struct(TOTALS, packed) }
      for place = 1, 9 do
        base[place] = base[place] + numbers[place]
      end
    end
  end
  if #days == 0 then
    base[N_ACCEPTED], base[N_DELIVERED], base[N_DEAD] = q.found_jobs, q.found_leases, q.found_dead
  end
  local packed = pack(TOTALS, unpack(base, 1, 9))
  if packed ~= NO_TOTALS then
    call('HDEL', q.totals, unpack(old))
    call('HSET', q.totals, 0, packed)
  end
end

function q.append(lists, key, one, two)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[#list + 1] = one
  if two then
    list[#list + 1] = two
  end
end

function q.zrem(key, id) q.append(q.zrems, key, id) end
function q.hdel(key, id) q.append(q.hdels, key, id) end

function q.zadd(key, score, id) q.append(q.zadds, key, score, id) end

function q.hset(key, id, value) q.append(q.hsets, key, id, value) end

-- Plans what must be known about a waiting job with a ttl.
function q.add_expiry(id, due, expires)
  if due <= q.swept then
    q.zadd(q.ttl, expires, id)
  else
    q.slack = math.min(q.slack, expires - due)
  end
  q.next_end = math.min(q.next_end, expires + 1)
end

-- Plans that a job waits; its record and header are planned by the caller, or need no change.
function q.add_waiting(id, priority, due, expires)
  q.zadd(q.wait[priority], due, id)
  q.first_due = math.min(q.first_due, due)
  if expires > 0 then
    q.add_expiry(id, due, expires)
  end
end

-- Plans that a job leaves waiting.
function q.remove_waiting(id, priority, expires)
  q.zrem(q.wait[priority], id)
  if expires > 0 and q.expiring > 0 then
    q.zrem(q.ttl, id)
  end
end

-- Plans that a job is gone from everything but its place. Whatever the clock does, its born never comes again.
function q.forget(id, born)
  q.hdel(q.jobs, id)
  if q.recorded > 0 then
    q.hdel(q.tries, id)
  end
  if q.informed > 0 then
    q.hdel(q.info, id)
  end
  q.floor = math.max(q.floor, born)
end

-- For a script that may have nothing to remove: Redis lets it write over maxmemory once it has begun with this.
function q.begin_with_removal()
  call('HDEL', q.meta, 'none')
end

-- Executes the plan, keeps the agenda a lower bound, and begins a new plan.
function q.commit()
  for key, ids in pairs(q.zrems) do q.variadic('ZREM', key, ids) end
  for key, ids in pairs(q.hdels) do q.variadic('HDEL', key, ids) end
  for key, values in pairs(q.hsets) do q.variadic('HSET', key, values) end
  for key, scores in pairs(q.zadds) do q.variadic('ZADD', key, scores) end
  local gone = q.hdels[q.jobs] and #q.hdels[q.jobs] or 0
  q.least_held = q.least_held - gone
  if gone > 0 and q.least_held <= 0 and q.is_idle() then
    q.latest = math.max(q.latest, q.now)
    q.next_end = math.min(q.next_end, q.latest + IDLE)
  end
  if q.counted_now then
    q.write_counts()
  end
  local state = q.packed_state()
  if state ~= q.old_state then
    call('HSET', q.meta, 'state', state)
    q.old_state = state
  end
  if q.expired > 0 then
    call('HINCRBY', q.meta, 'expired', q.expired)
  end
  if q.next_end < huge then
    call('ZADD', q.agenda, 'LT', q.next_end, q.name)
  end
  q.begin_plan()
end

-- Wakes all processes if a job now waits that is due before `before`, the earliest until now. Without the right
-- to publish the script still succeeds: waiting consumers check for jobs every second.
function q.wake(before)
  if q.first_due < before and not q.paused then
    q.waiting = { 1, 1, 1 }
    local first = q.earliest()
    if first < before then
      redis.pcall('PUBLISH', 'dt:wake', q.name .. ' ' .. q.text(first))
    end
  end
end
