-- Module add: adding jobs, as push, put_back and finish do. Needs the modules keys, header, queue and find.

-- Options of a job: ttl_ms, tries, priority, attempt, born; packed attributes follow. See pack_options of codec.py.
local OPTIONS = '>I8I2BI4I8'

-- Reads the options of jobs. Batches repeat themselves, so each distinct text is read once.
function q.read_options(packed)
  local options = q.options[packed]
  if not options then
    local ttl, tries, priority, attempt, born, rest = unpack_struct(OPTIONS, packed)
    options = { ttl = ttl, tries = tries, priority = priority, attempt = attempt, born = born,
      attributes = sub(packed, rest), expires = ttl > 0 and q.now + ttl or 0 }
    q.options[packed] = options
  end
  return options
end

-- Reads a group of jobs from ARGV[at] on; returns it, and the place after it. A group is jobs that share options:
-- options · number of jobs · delay_ms of all ('' if each has a due_at of its own, '+' if each has a delay of its own) ·
-- least and greatest of the due_ats or delays (both '' with one delay for all) · ids, or pairs of due_at or delay and
-- id; with `has_borns`, due_at or delay, id and born · bodies.
function q.read_group(at, has_borns)
  local args, now = ARGV, q.now
  local size, when = tonumber(args[at + 1]), args[at + 2]
  local delay = tonumber(when)
  local step = delay and 1 or has_borns and 3 or 2
  local group = { options = q.read_options(args[at]), size = size, step = step, ids = at + (delay and 5 or 6),
    bodies = at + 5 + step * size }
  if delay then
    group.due, group.low, group.high = q.text(now + delay), now + delay, now + delay
  else
    group.low, group.high = tonumber(args[at + 3]), tonumber(args[at + 4])
    if when == '+' then
      group.low, group.high = now + group.low, now + group.high
      for place = group.ids - 1, group.bodies - 2, step do
        args[place] = now + args[place]
      end
    end
  end
  return group, group.bodies + size
end

-- Which of these ids the queue has, as a set. Reads values only where they are small.
function q.find_taken(ids, budget)
  local taken = {}
  if q.held > 0 then
    local stored = #ids * q.largest <= budget and q.fetch(q.jobs, ids)
    for i = 1, #ids do
      if stored and stored[i] or not stored and call('HEXISTS', q.jobs, ids[i]) == 1 then
        taken[ids[i]] = true
      end
    end
  end
  return taken
end

-- Why the queue's rules and the job's own times refuse a job, if they do. `index` is its place in the request.
function q.refuse_job(index, body, due, expires)
  if q.max_body > 0 and #body > q.max_body then
    return 'b ' .. index .. ' ' .. q.max_body
  end
  if expires > 0 and due > expires then
    return 'e ' .. index
  end
end

-- Decides about a job whose id is taken. If the old job is kept, returns the packed Moved that says so. Otherwise plans
-- the end of the old job, and returns nil, its born (nil if it cannot be read) and whether it had expired.
function q.resolve_taken(id, replaces, budget)
  local job = q.find({ id }, 0, budget)[1]
  if not job then
    q.set_aside(id, call('HGET', q.jobs, id), call('HGET', q.tries, id), {})
    for _, place in ipairs({ q.wait[1], q.wait[2], q.wait[3], q.leases, q.dead }) do
      q.zrem(place, id)
    end
    q.held = q.held - 1
    return nil
  end
  local state, born, attempt, priority, expires = job[1], job[2], job[3], job[6], job[8]
  local expired = state == WAITING and expires > 0 and expires < q.now
  if not replaces and not expired then
    if state == WAITING then
      return pack(MOVED, KEPT, IS_WAITING, born, attempt, tonumber(call('ZSCORE', q.wait[priority], id)), 0)
    end
    return pack(MOVED, KEPT, state == LEASED and IS_LEASED or IS_DEAD, born, attempt, 0, 0)
  end
  if state == WAITING then
    q.remove_waiting(id, priority, expires)
  else
    q.zrem(state == LEASED and q.leases or q.dead, id)
  end
  q.forget(id, born)
  q.held = q.held - 1
  if expired then
    q.expired = q.expired + 1
    q.count(N_EXPIRED)
  end
  return nil, born, expired
end

-- What a header has around the born: the flags, and ttl and tries. `is_new`: the ttl counts from the born.
function q.header_parts(options, is_new)
  local flags, ttl, tail = options.priority, options.ttl, ''
  if ttl > 0 then
    if is_new and ttl % 1000 == 0 and ttl <= 65535000 then
      flags, tail = flags + 4 * TTL_SECONDS, pack('>I2', ttl / 1000)
    elseif is_new and ttl % 60000 == 0 and ttl <= 65535 * 60000 then
      flags, tail = flags + 4 * TTL_MINUTES, pack('>I2', ttl / 60000)
    else
      flags, tail = flags + 4 * TTL_ABSOLUTE, pack('>I6', options.expires)
    end
  end
  local code = TRIES_FOLLOW
  for candidate = 0, #TRIES_BY_CODE do
    if TRIES_BY_CODE[candidate] == options.tries then
      code = candidate
    end
  end
  return flags + 16 * code, code == TRIES_FOLLOW and tail .. pack('>I2', options.tries) or tail
end

function q.write_header(flags, born, tail)
  if born >= EPOCH and born < EPOCH + 1099511627776 then
    return pack('>BI5', flags, born - EPOCH) .. tail
  end
  return pack('>BI8', flags + 128, born) .. tail
end

-- The born of a job that is new now; above `above`, and above every born that the queue has forgotten.
function q.new_born(above)
  local born = math.max(q.now, q.floor + 1, above + 1)
  if born > q.now then
    q.floor = math.max(q.floor, born)
  end
  return born
end

-- Notes in the queue's state that jobs are planned: how many, the earliest due_at, the latest born, the largest value.
function q.note_added(count, first_due, latest, largest)
  q.first_due, q.latest = math.min(q.first_due, first_due), math.max(q.latest, latest)
  q.largest, q.held = math.max(q.largest, largest), q.held + count
  q.count(N_ACCEPTED, count)
end

-- Writes planned jobs, `values` by id and `scores` by priority, and then the rest of the plan. The values come first of
-- all writes, because that is the write that a full Redis refuses.
function q.commit_added(values, scores)
  if #values > 0 then
    q.variadic('HSET', q.jobs, values)
    q.hdels[q.jobs] = nil -- each of them made room for one of these values
    for priority = 1, 3 do
      if #scores[priority] > 0 then
        q.zadds[q.wait[priority]] = scores[priority]
      end
    end
  end
  q.commit()
end

-- Registers the queue, if `known` says that its partition's agenda did not have it.
function q.register(known)
  if not known then
    call('ZADD', q.agenda, 'LT', q.is_idle() and q.text(q.latest + IDLE) or '+inf', q.name)
    call('PERSIST', q.meta)
    call('PERSIST', q.totals)
  end
end
