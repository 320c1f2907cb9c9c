-- Add jobs to a queue: several requests, each all or nothing.
-- Modules: keys header queue find add
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to hold at a time · 3 '1' if no id occurs twice in this call · 4 number of
--   requests · 5.. the requests. A request is if_exists (keep, replace, error) · mark name · digest · life_ms · '1' if
--   the mark is brief (all four '' without a mark) · number of groups · groups, as q.read_group reads them
-- Returns: { now, answer.. }, an answer per request:
--   born (integer)          every job was accepted with this born, attempt 0, in no other's place
--   { moved.. }             one packed Moved per job
--   { 'repeated', packed }  the mark was there; packed: id length I2, id, Moved, for each job; or born I8, now I8 where
--                           a brief mark is for jobs that were all accepted with one born
--   text                    refused: 'm' mark_mismatch · 'f max_jobs' queue_full · 'b index max_body' body_too_large ·
--                           'e index' expires_before_due · 'x index' job_exists · 'o' topic_offline
-- Touches: jobs wait tries info leases dead ttl meta agenda damaged mark totals

local args = ARGV
local now, budget, distinct = q.clock(args[1]), tonumber(args[2]), args[3] == '1'
q.begin()
local before = q.earliest()
local known = call('ZSCORE', q.agenda, q.name)

local requests, ids, cursor = {}, {}, 5
for r = 1, tonumber(args[4]) do
  local request = { if_exists = args[cursor], mark = args[cursor + 1], digest = args[cursor + 2],
    life = tonumber(args[cursor + 3]), is_brief = args[cursor + 4] == '1' }
  request.old_mark = request.mark ~= '' and call('GET', prefix .. ':mark:' .. request.mark)
  local groups = tonumber(args[cursor + 5])
  cursor = cursor + 6
  for g = 1, groups do
    local group
    group, cursor = q.read_group(cursor)
    for at = group.ids, group.bodies - 1, group.step do
      ids[#ids + 1] = args[at]
    end
    request[g] = group
  end
  requests[r] = request
end

local taken = q.find_taken(ids, budget)
local no_conflict = distinct and next(taken) == nil

-- Jobs that are planned and not yet written.
local values, scores, fresh = {}, { {}, {}, {} }, {}

local function flush()
  q.commit_added(values, scores)
  values, scores, fresh = {}, { {}, {}, {} }, {}
  q.recorded, q.informed, q.expiring = 1, 1, 1
end

-- Plans jobs first to last of a group, with one born for all, which must be above `above`.
local function add(group, first, last, above)
  local options, due, step = group.options, group.due, group.step
  local born, expires, attempt, attributes = options.born, options.expires, options.attempt, options.attributes
  if born == 0 then
    born = q.new_born(above)
  end
  local flags, tail = q.header_parts(options, born == now)
  local header, list, largest = q.write_header(flags, born, tail), scores[options.priority], 0
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
  local watched = expires > 0 and group.low <= q.swept
  if expires > 0 and not watched then
    q.slack, q.next_end = math.min(q.slack, expires - group.high), math.min(q.next_end, expires + 1)
  end
  if watched or attempt > 0 or attributes ~= '' or not distinct then
    for index = first, last do
      local at = id_at + step * index
      local id, due_at = args[at], tonumber(due or args[at - 1])
      if watched then
        q.add_expiry(id, due_at, expires)
      end
      if attempt > 0 then
        q.hset(q.tries, id, pack(RECORD, WAITING, born, attempt, 0, options.tries, options.priority, due_at, expires))
      end
      if attributes ~= '' then
        q.hset(q.info, id, '\0\0' .. attributes)
      end
      if not distinct then
        fresh[id], taken[id] = true, true
      end
    end
  end
  q.note_added(last - first + 1, group.low, born, largest + #attributes)
  return born
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
local function refuse(request)
  local must_exist_not = request.if_exists == 'error'
  local suspicious = q.offline or q.max_body > 0 or q.max_jobs > 0 or (must_exist_not and not no_conflict)
  for g = 1, #request do
    suspicious = suspicious or (request[g].options.ttl > 0 and request[g].high > request[g].options.expires)
  end
  local seen, count = {}, q.held
  return suspicious and each(request, function(group, i, index, id, due)
    if q.offline and group.options.born == 0 then
      return 'o'
    end
    local reason = q.refuse_job(index, args[group.bodies + i - 1], due, group.options.expires)
    if reason then
      return reason
    end
    if must_exist_not and (seen[id] or fresh[id] or (taken[id] and q.find({ id }, now, budget)[1])) then
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

-- Carries out a request that is not refused: its Moveds, or the born of all if they are all alike.
local function accept(request)
  local moved, alike, in_full = {}, nil, request.mark ~= '' and not request.is_brief
  if no_conflict and q.floor < now then -- else each job is born above the one before it
    for g = 1, #request do
      local born = add(request[g], 1, request[g].size, 0)
      in_full = in_full or request[g].options.attempt > 0 or born ~= (alike or born)
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
      if fresh[id] then -- it is written first, so that it can be found
        flush()
      end
      kept, was, expired = q.resolve_taken(id, request.if_exists == 'replace', budget)
    end
    local born = group.born or not kept and add(group, i, i, was or 0)
    moved[index] = kept or pack(MOVED, was and not expired and REPLACED or ACCEPTED, expired and BY_EXPIRY or NO_REASON,
      born, group.options.attempt, due, was or 0)
  end)
  return moved
end

-- What the mark of an accepted request holds: until when I8, length of the digest I2, digest, and the answer.
local function write_mark(request, moved)
  local parts = { pack('>I8I2', now + request.life, #request.digest), request.digest }
  if type(moved) == 'number' then
    parts[3] = pack('>I8I8', moved, now)
  else
    each(request, function(_, _, index, id)
      parts[#parts + 1] = pack('>I2', #id) .. id .. moved[index]
    end)
  end
  return table.concat(parts)
end

local new_marks = {}

-- The answer that the mark of a request gives; nil if it has no mark, or none that is still valid.
local function repeated(request)
  local mark = new_marks[request.mark] or request.old_mark
  if mark then
    local until_at, length = unpack_struct('>I8I2', mark)
    if until_at > now then
      return sub(mark, 11, 10 + length) == request.digest and { 'repeated', sub(mark, 11 + length) } or 'm'
    end
  end
end

local answers, any = { now }, false
for r = 1, #requests do
  local request = requests[r]
  local answer = repeated(request) or refuse(request)
  if not answer then
    any, answer = true, accept(request)
    if request.mark ~= '' then
      new_marks[request.mark] = write_mark(request, answer)
    end
  end
  answers[r + 1] = answer
end

if any then
  flush()
  q.register(known)
  for name, mark in pairs(new_marks) do
    -- Redis only cleans up; a given clock may go slower than Redis's own.
    local spare = args[1] == '' and 1 or 3600000
    call('SET', prefix .. ':mark:' .. name, mark, 'PX', unpack_struct('>I8', mark) - now + spare)
  end
  q.wake(before)
end
return answers
