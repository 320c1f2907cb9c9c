-- Add jobs to a queue: several requests, each all or nothing.
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to hold at a time · 3 '1' if no id stands twice in this call · 4 number of
--   requests · 5.. the requests. A request is if_exists (k keep, r replace, e error; K keep with a brief mark; P keep,
--   all jobs or none of them, with a repair's mark for each job, and the only request of its call) · mark name · digest
--   · life_ms (all '' without a mark; a P has a life only) · number of groups · groups. A group is jobs that differ in
--   id, body and due_at only: how (ttl_ms I8, tries I2, priority B, attempt I4, born I8, packed attributes) · number of
--   jobs · delay_ms of all ('' if each has a due_at of its own, '+' if each has a delay of its own, 'b' in a P: each
--   has a due_at and a born) · least and greatest of the due_ats or delays (both '' with one delay for all) · ids, or
--   pairs of due_at or delay and id, or due_at, id and born · bodies
-- Returns: { now, answer.. }, an answer per request:
--   born (integer)          every job was accepted with this born, attempt 0, in no other's place
--   { moved.. }             one packed Moved per job
--   { 'repeated', packed }  the mark was there; packed: id length I2, id, Moved, for each job; or born I8, now I8 where
--                           a brief mark stands for jobs that were all accepted with one born
--   0                       every job of a P was accepted with its own born and attempt
--   text                    refused: 'm' mark_mismatch · 'f max_jobs' queue_full · 'b index max_body' body_too_large ·
--                           'l index' expires_before_due · 'x index' job_exists · 'o' topic_offline · 'u' a P that is
--                           not plain: one of its ids or marks is known, or the queue refuses a job; each job has to
--                           be pushed alone
-- Touches: jobs wait tries info leases dead ttl meta agenda damaged mark repaired totals

local args = ARGV
local now, budget, distinct = q.clock(args[1]), tonumber(args[2]), args[3] == '1'
q.begin()
local before = q.earliest()
local known = call('ZSCORE', q.agenda, q.name)

-- Batches repeat themselves: every distinct `how` is read once.
local options = {}

local function read_how(how)
  local lasts, allowed, priority, attempt, born, rest = unpack_struct('>I8I2BI4I8', how)
  local o = { ttl = lasts, tries = allowed, priority = priority, attempt = attempt, born = born }
  o.attributes = sub(how, rest)
  o.expires = o.ttl > 0 and now + o.ttl or 0
  options[how] = o
  return o
end

-- The marks of repairs are kept by id: a name for each mark would be one more string to make, to hash and to keep. The
-- marks of an id stand one after the other: born I8, attempt I4, the length of what follows B, and the packed Moved, or
-- nothing if the job was accepted as the request has it.
local FENCE, PLAIN_MARK = '>I8I4', '>I8I4B'

-- What the mark of this born and attempt says, nil if it is not among these marks.
local function find_mark(marks, fence)
  local at = 1
  while at <= #marks do
    local last = at + 12 + byte(marks, at + 12)
    if sub(marks, at, at + 11) == fence then
      return sub(marks, at + 13, last)
    end
    at = last + 1
  end
end

-- The name of the mark with which a lost job is put back alone: `repair_mark` of stores/repair_mark.py.
local function repair_name(group)
  local o = group.o
  return o.born > 0 and '/repair/' .. q.text(o.born) .. '/' .. q.text(o.attempt) .. '/' .. args[group.ids]
end

-- The marks of the ids that are put back alone, with those that this call adds; and what it writes of marks: what
-- those of batches keep, by name, and the fields and values of those of repairs.
local marks_of, made_now, repaired, repair_life = {}, {}, {}, 0

local requests, ids, cursor = {}, {}, 5
for r = 1, tonumber(args[4]) do
  local mark = args[cursor + 1]
  local brief = args[cursor] == 'K'
  local request = { kind = brief and 'k' or args[cursor], brief = brief, mark = mark, digest = args[cursor + 2],
    life = tonumber(args[cursor + 3]) }
  local groups = tonumber(args[cursor + 4])
  cursor = cursor + 5
  for g = 1, groups do
    local how, size, when = args[cursor], tonumber(args[cursor + 1]), args[cursor + 2]
    local delay = tonumber(when)
    local step = delay and 1 or when == 'b' and 3 or 2
    local group = { o = options[how] or read_how(how), size = size, step = step,
      ids = cursor + (delay and 5 or 6), bodies = cursor + 5 + step * size }
    if delay then
      group.due, group.low, group.high = q.text(now + delay), now + delay, now + delay
    else
      group.low, group.high = tonumber(args[cursor + 3]), tonumber(args[cursor + 4])
      if when == '+' then
        group.low, group.high = now + group.low, now + group.high
        for at = group.ids - 1, group.bodies - 2, 2 do
          args[at] = now + args[at]
        end
      end
    end
    for at = group.ids, group.bodies - 1, step do
      ids[#ids + 1] = args[at]
    end
    request[g] = group
    cursor = group.bodies + size
  end
  if request.kind == 'P' then
    request.marks = q.fetch(q.repaired, ids)
  elseif mark ~= '' then
    local group = request[1]
    if groups == 1 and group.size == 1 and mark == repair_name(group) then
      local id = args[group.ids]
      request.fence = pack(FENCE, group.o.born, group.o.attempt)
      marks_of[id] = marks_of[id] or call('HGET', q.repaired, id) or ''
    else
      request.made = call('GET', prefix .. ':mark:' .. mark)
    end
  end
  requests[r] = request
end

-- Which ids are taken: one look at all, which costs their values only where these are small.
local taken = {}
if q.held > 0 then
  local stored = #ids * q.largest <= budget and q.fetch(q.jobs, ids)
  for i = 1, #ids do
    if stored and stored[i] or not stored and call('HEXISTS', q.jobs, ids[i]) == 1 then
      taken[ids[i]] = true
    end
  end
end
local no_conflict = distinct and next(taken) == nil

-- What stands in a header around the born: the flags, and ttl and tries. `is_new`: the ttl counts from the born.
local function header_parts(o, is_new)
  local flags, lasts, tail = o.priority, o.ttl, ''
  if lasts > 0 then
    if is_new and lasts % 1000 == 0 and lasts <= 65535000 then
      flags, tail = flags + 4 * TTL_SECONDS, pack('>I2', lasts / 1000)
    elseif is_new and lasts % 60000 == 0 and lasts <= 65535 * 60000 then
      flags, tail = flags + 4 * TTL_MINUTES, pack('>I2', lasts / 60000)
    else
      flags, tail = flags + 4 * TTL_ABSOLUTE, pack('>I6', o.expires)
    end
  end
  local code = TRIES_FOLLOW
  for candidate = 0, #TRIES_BY_CODE do
    if TRIES_BY_CODE[candidate] == o.tries then
      code = candidate
    end
  end
  return flags + 16 * code, code == TRIES_FOLLOW and tail .. pack('>I2', o.tries) or tail
end

local function write_header(flags, born, tail)
  if born >= EPOCH and born < EPOCH + 1099511627776 then
    return pack('>BI5', flags, born - EPOCH) .. tail
  end
  return pack('>BI8', flags + 128, born) .. tail
end

-- Jobs that are planned and not yet written. An id that comes back is written first, so that it can be found.
local values, scores, fresh = {}, { {}, {}, {} }, {}

local function flush()
  if #values > 0 then
    q.variadic('HSET', q.jobs, values) -- first of all writes: the one that a full Redis refuses
    for priority = 1, 3 do
      if #scores[priority] > 0 then
        q.zadds[q.wait[priority]] = scores[priority]
      end
    end
  end
  q.commit()
  values, scores, fresh = {}, { {}, {}, {} }, {}
  q.recorded, q.informed, q.expiring = 1, 1, 1
end

-- Notes what follows from jobs first to last of a group for the queue's state and for P:ttl.
local function note(group, first, last, latest, largest)
  local o, due, step = group.o, group.due, group.step
  local expires, lingers = o.expires, o.expires > 0 and group.low <= q.swept
  if expires > 0 and not lingers then
    q.slack = math.min(q.slack, expires - group.high)
  end
  for index = lingers and first or last + 1, last do
    local at = group.ids + step * (index - 1)
    local due_at = tonumber(due or args[at - 1])
    if due_at <= q.swept then
      q.zadd(q.ttl, expires, args[at])
    else
      q.slack = math.min(q.slack, expires - due_at)
    end
  end
  q.first_due, q.latest = math.min(q.first_due, group.low), math.max(q.latest, latest)
  q.next_end = math.min(q.next_end, expires > 0 and expires + 1 or huge)
  q.largest = math.max(q.largest, largest + #o.attributes)
  q.held = q.held + last - first + 1
  q.count(N_ACCEPTED, last - first + 1)
end

-- Plans jobs first to last of a group, with one born for all, which must be above `above`.
local function add(group, first, last, above)
  local o, due, step = group.o, group.due, group.step
  local born, expires = o.born, o.expires
  if born == 0 then
    born = math.max(now, q.floor + 1, above + 1)
    if born > now then
      q.floor = math.max(q.floor, born)
    end
  end
  local flags, tail = header_parts(o, born == now)
  local header, list, largest = write_header(flags, born, tail), scores[o.priority], 0
  local n, m, id_at, bodies = #values, #list, group.ids - step, group.bodies - 1
  for index = first, last do
    local at = id_at + step * index
    local id, value = args[at], header .. args[bodies + index]
    values[n + 1], values[n + 2] = id, value
    list[m + 1], list[m + 2] = due or args[at - 1], id
    n, m = n + 2, m + 2
    if #value > largest then
      largest = #value
    end
  end
  if o.attempt > 0 or o.attributes ~= '' or not distinct then
    for index = first, last do
      local at = id_at + step * index
      local id, due_at = args[at], tonumber(due or args[at - 1])
      if o.attempt > 0 then
        q.hset(q.tries, id, pack(RECORD, WAITING, born, o.attempt, 0, o.tries, o.priority, due_at, expires))
      end
      if o.attributes ~= '' then
        q.hset(q.info, id, '\0\0' .. o.attributes)
      end
      if not distinct then
        fresh[id], taken[id] = true, true
      end
    end
  end
  note(group, first, last, born, largest)
  return born
end

-- Plans all jobs of a P's group, each with its born, its record and its mark. `marks` are those that the ids of the
-- request have; those of this group come after so many others.
local function add_lost(group, marks, others)
  local o, list, records, largest, latest = group.o, scores[group.o.priority], q.hsets[q.tries] or {}, 0, 0
  local flags, tail = header_parts(o, false)
  local n, m, r, k, bodies = #values, #list, #records, #repaired, group.bodies - 1
  local attempt, tries, priority, expires = o.attempt, o.tries, o.priority, o.expires
  for index = 1, group.size do
    local at = group.ids + 3 * (index - 1)
    local id, due, born = args[at], args[at - 1], tonumber(args[at + 1])
    local value, mark = write_header(flags, born, tail) .. args[bodies + index], pack(PLAIN_MARK, born, attempt, 0)
    values[n + 1], values[n + 2] = id, value
    list[m + 1], list[m + 2] = due, id
    records[r + 1], records[r + 2] = id, pack(RECORD, WAITING, born, attempt, 0, tries, priority, due, expires)
    repaired[k + 1], repaired[k + 2] = id, marks[others + index] and marks[others + index] .. mark or mark
    n, m, r, k = n + 2, m + 2, r + 2, k + 2
    if #value > largest then
      largest = #value
    end
    if born > latest then
      latest = born
    end
  end
  q.hsets[q.tries] = records
  note(group, 1, group.size, latest, largest)
end

-- A job whose id is taken: the Moved that says it is kept; or, once its end is planned, its born and whether it was
-- expired.
local function meet(id, kind)
  if fresh[id] then
    flush()
  end
  local job = q.find({ id }, 0, budget)[1]
  if not job then -- the new job takes the place of one that cannot be read
    q.set_aside(id, call('HGET', q.jobs, id), call('HGET', q.tries, id), {})
    for _, place in ipairs({ q.wait[1], q.wait[2], q.wait[3], q.leases, q.dead }) do
      q.zrem(place, id)
    end
    q.hdels[q.jobs] = nil
    q.held = q.held - 1
    return nil
  end
  local state, born, attempt, priority, expires = job[1], job[2], job[3], job[6], job[8]
  local expired = state == WAITING and expires > 0 and expires < now
  if kind ~= 'r' and not expired then
    if state == WAITING then
      return pack(MOVED, KEPT, IS_WAITING, born, attempt, tonumber(call('ZSCORE', q.wait[priority], id)), 0)
    end
    return pack(MOVED, KEPT, state == LEASED and IS_LEASED or IS_DEAD, born, attempt, 0, 0)
  end
  if state == WAITING then
    q.unstand(id, priority, expires)
  else
    q.zrem(state == LEASED and q.leases or q.dead, id)
  end
  q.forget(id, born)
  q.hdels[q.jobs] = nil -- the new value takes the old one's place
  q.held = q.held - 1
  if expired then
    q.expired = q.expired + 1
    q.count(N_EXPIRED)
  end
  return nil, born, expired
end

-- Calls visit(group, index in the group, index in the request, id, due_at) for each job until it answers something.
local function each(request, visit)
  local index = 0
  for g = 1, #request do
    local group = request[g]
    for i = 1, group.size do
      index = index + 1
      local at = group.ids + group.step * (i - 1)
      local answer = visit(group, i, index, args[at], tonumber(group.due or args[at - 1]))
      if answer then
        return answer
      end
    end
  end
end

-- Why a request is refused, if it is. Changes nothing.
local function refusal(request)
  local suspicious = q.offline or q.max_body > 0 or q.max_jobs > 0 or (request.kind == 'e' and not no_conflict)
  for g = 1, #request do
    suspicious = suspicious or (request[g].o.ttl > 0 and request[g].high > request[g].o.expires)
  end
  local seen, count = {}, q.held
  return suspicious and each(request, function(group, i, index, id, due)
    if q.offline and group.o.born == 0 then
      return 'o'
    end
    local size = #args[group.bodies + i - 1]
    if q.max_body > 0 and size > q.max_body then
      return 'b ' .. index .. ' ' .. q.max_body
    end
    if group.o.ttl > 0 and due > group.o.expires then
      return 'l ' .. index
    end
    if request.kind == 'e' and (seen[id] or fresh[id] or (taken[id] and q.find({ id }, now, budget)[1])) then
      return 'x ' .. index
    end
    if q.max_jobs > 0 and not seen[id] and not taken[id] then
      count = count + 1
      if count > q.max_jobs then
        return 'f ' .. q.max_jobs
      end
    end
    seen[id] = true
  end)
end

-- Carries out a request that nothing speaks against: its Moveds, or the born of all if they are all alike.
local function accept(request)
  local moved, alike, in_full = {}, nil, request.mark ~= '' and not request.brief
  if no_conflict and q.floor < now then -- else each job is born above the one before it
    for g = 1, #request do
      local born = add(request[g], 1, request[g].size, 0)
      in_full = in_full or request[g].o.attempt > 0 or born ~= (alike or born)
      alike = born
      request[g].born = born
    end
    if not in_full and alike then
      return alike
    end
  end
  each(request, function(group, i, index, id, due)
    local kept, was, expired
    if taken[id] then
      kept, was, expired = meet(id, request.kind)
    end
    local born = group.born or not kept and add(group, i, i, was or 0)
    moved[index] = kept or pack(MOVED, was and not expired and REPLACED or ACCEPTED, expired and BY_EXPIRY or NO_REASON,
      born, group.o.attempt, due, was or 0)
  end)
  return moved
end

-- Carries out a P: 0, or 'u' if nothing was done.
local function put_back(request)
  local marks, planned, suspicious = request.marks, 0, false
  for i = 1, #ids do
    suspicious = suspicious or marks[i]
  end
  local is_known = suspicious and each(request, function(group, i, index)
    local born = args[group.ids + 3 * (i - 1) + 1]
    return marks[index] and find_mark(marks[index], pack(FENCE, born, group.o.attempt))
  end)
  if is_known or not no_conflict or refusal(request) then
    return 'u'
  end
  for g = 1, #request do
    add_lost(request[g], marks, planned)
    planned = planned + request[g].size
  end
  repair_life = request.life
  return 0
end

-- Carries out a request whose mark is a repair's, unless the job was put back under it before.
local function put_back_alone(request)
  local group = request[1]
  local o, id, due = group.o, args[group.ids], group.due or args[group.ids - 1]
  local made = find_mark(marks_of[id], request.fence)
  if made then
    made = made ~= '' and made or pack(MOVED, ACCEPTED, NO_REASON, o.born, o.attempt, tonumber(due), 0)
    return { 'repeated', pack('>I2', #id) .. id .. made }
  end
  local answer = refusal(request)
  if not answer then
    answer = accept(request)
    marks_of[id] = marks_of[id] .. request.fence .. string.char(#answer[1]) .. answer[1]
    repaired[#repaired + 1], repaired[#repaired + 2] = id, marks_of[id]
    repair_life = request.life
  end
  return answer
end

local function remember(request, moved)
  local parts = { pack('>I8I2', now + request.life, #request.digest), request.digest }
  if type(moved) == 'number' then
    parts[3] = pack('>I8I8', moved, now)
    return table.concat(parts)
  end
  each(request, function(_, _, index, id)
    parts[#parts + 1] = pack('>I2', #id) .. id .. moved[index]
  end)
  return table.concat(parts)
end

local answers, any = { now }, false
for r = 1, #requests do
  local request = requests[r]
  local made = made_now[request.mark] or request.made
  local until_at, length = 0, 0
  if made then
    until_at, length = unpack_struct('>I8I2', made)
  end
  local answer
  if until_at > now then
    answer = sub(made, 11, 10 + length) == request.digest and { 'repeated', sub(made, 11 + length) } or 'm'
  elseif request.kind == 'P' then
    answer = put_back(request)
    any = any or answer == 0
  elseif request.fence then
    answer = put_back_alone(request)
    any = any or #repaired > 0
  else
    answer = refusal(request)
    if not answer then
      any, answer = true, accept(request)
      if request.mark ~= '' then
        made_now[request.mark] = remember(request, answer)
      end
    end
  end
  answers[#answers + 1] = answer
end

if any then
  flush()
  if not known then
    call('ZADD', q.agenda, 'LT', q.is_idle() and q.text(q.latest + IDLE) or '+inf', q.name)
    call('PERSIST', q.meta)
    call('PERSIST', q.totals)
  end
  for mark, made in pairs(made_now) do
    -- Redis only cleans up; a given clock may go slower than Redis's own.
    local spare = args[1] == '' and 1 or 3600000
    call('SET', prefix .. ':mark:' .. mark, made, 'PX', unpack_struct('>I8', made) - now + spare)
  end
  if #repaired > 0 then
    q.variadic('HSET', q.repaired, repaired)
    call('PEXPIRE', q.repaired, repair_life)
  end
  q.announce(before)
end
return answers
