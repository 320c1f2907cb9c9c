-- Add jobs to a queue: several requests, each all or nothing.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 bytes of values to hold at a time · 3 number of requests · 4.. the requests. A request is
--   if_exists (k keep, r replace, e error) · number of jobs · mark name · digest · life_ms ('' thrice without a mark) ·
--   jobs. A job is id · body · when ('+delay_ms' or due_at) · how (ttl_ms I8, tries I2, priority B, attempt I4,
--   born I8, packed attributes)
-- Returns: { now, answer.. }, an answer per request:
--   born (integer)          every job was accepted with this born, attempt 0, in no other's place
--   { moved.. }             one packed Moved per job
--   { 'repeated', packed }  the mark was there; packed: id length I2, id, Moved, for each job
--   text                    refused: 'm' mark_mismatch · 'f max_jobs' queue_full · 'b index max_body' body_too_large ·
--                           'l index' expires_before_due · 'x index' job_exists
-- Touches: jobs wait tries info leases dead ttl meta agenda mark

local now, budget = clock(ARGV[1]), tonumber(ARGV[2])
begin()
local before = earliest()
local known = call('ZSCORE', agenda, queue)

local requests, ids, cursor = {}, {}, 4
for r = 1, tonumber(ARGV[3]) do
  local kind, size, mark = ARGV[cursor], tonumber(ARGV[cursor + 1]), ARGV[cursor + 2]
  local made = mark ~= '' and call('GET', prefix .. ':mark:' .. mark)
  requests[r] = { kind, size, mark, ARGV[cursor + 3], tonumber(ARGV[cursor + 4]), cursor + 5, made }
  cursor = cursor + 5
  for _ = 1, size do
    ids[#ids + 1] = ARGV[cursor]
    cursor = cursor + 4
  end
end

-- Which ids are taken: one look at all, which costs their values only where these are small.
local taken = {}
if held > 0 then
  local stored = #ids * largest <= budget and fetch(jobs, ids)
  for i = 1, #ids do
    if stored and stored[i] or not stored and call('HEXISTS', jobs, ids[i]) == 1 then
      taken[ids[i]] = true
    end
  end
end

-- Batches repeat themselves: every distinct `when` and `how` is read once.
local dues, due_texts, options = {}, {}, {}

local function read_when(when)
  local due = byte(when) == 43 and now + tonumber(sub(when, 2)) or tonumber(when)
  dues[when], due_texts[when] = due, string.format('%.0f', due)
  return due
end

local function read_how(how)
  local o, rest = {}, nil
  o.ttl, o.tries, o.priority, o.attempt, o.born, rest = unpack_struct('>I8I2BI4I8', how)
  o.attributes = sub(how, rest)
  o.expires = o.ttl > 0 and now + o.ttl or 0
  options[how] = o
  return o
end

local function write_header(o, born)
  local flags, ages = o.priority, o.ttl
  local short = born >= EPOCH and born < EPOCH + 1099511627776
  local header = short and pack('>I5', born - EPOCH) or pack('>I8', born)
  if ages > 0 then
    if born == now and ages % 1000 == 0 and ages <= 65535000 then
      flags, header = flags + 4 * TTL_SECONDS, header .. pack('>I2', ages / 1000)
    elseif born == now and ages % 60000 == 0 and ages <= 65535 * 60000 then
      flags, header = flags + 4 * TTL_MINUTES, header .. pack('>I2', ages / 60000)
    else
      flags, header = flags + 4 * TTL_ABSOLUTE, header .. pack('>I6', o.expires)
    end
  end
  local code = TRIES_FOLLOW
  for candidate = 0, #TRIES_BY_CODE do
    if TRIES_BY_CODE[candidate] == o.tries then
      code = candidate
    end
  end
  if code == TRIES_FOLLOW then
    header = header .. pack('>I2', o.tries)
  end
  o.header, o.header_born = string.char(flags + 16 * code + (short and 0 or 128)) .. header, born
  return o.header
end

-- Jobs that are planned and not yet written. An id that comes back is written first, so that it can be found.
local values, scores, fresh, top, last_born = {}, { {}, {}, {} }, {}, largest, latest

local function flush()
  if #values > 0 then
    variadic('HSET', jobs, values) -- first of all writes: the one that a full Redis refuses
    for priority = 1, 3 do
      if #scores[priority] > 0 then
        zadds[wait[priority]] = scores[priority]
      end
    end
  end
  commit()
  values, scores, fresh = {}, { {}, {}, {} }, {}
  recorded, informed, expiring = 1, 1, 1
end

-- Why a request is refused, if it is. Changes nothing.
local function refusal(kind, size, at)
  local seen, count = {}, held
  for index = 1, size do
    local id, when, how = ARGV[at], ARGV[at + 2], ARGV[at + 3]
    local due, o = dues[when] or read_when(when), options[how] or read_how(how)
    if max_body > 0 and #ARGV[at + 1] > max_body then
      return 'b ' .. index .. ' ' .. max_body
    end
    if o.ttl > 0 and due > o.expires then
      return 'l ' .. index
    end
    if kind == 'e' and (seen[id] or fresh[id] or (taken[id] and find({ id }, now, budget)[1])) then
      return 'x ' .. index
    end
    if max_jobs > 0 and not seen[id] and not taken[id] then
      count = count + 1
      if count > max_jobs then
        return 'f ' .. max_jobs
      end
    end
    if kind == 'e' or max_jobs > 0 then
      seen[id] = true
    end
    at = at + 4
  end
end

-- A job whose id is taken: the Moved that says it is kept; or, once its end is planned, its born and whether it was
-- expired.
local function meet(id, kind)
  if fresh[id] then
    flush()
  end
  local job = find({ id }, 0, budget)[1]
  local state, born, attempt, priority, expires = job[1], job[2], job[3], job[6], job[8]
  local expired = state == WAITING and expires > 0 and expires < now
  if kind ~= 'r' and not expired then
    if state == WAITING then
      return pack(MOVED, KEPT, IS_WAITING, born, attempt, tonumber(call('ZSCORE', wait[priority], id)), 0)
    end
    return pack(MOVED, KEPT, state == LEASED and IS_LEASED or IS_DEAD, born, attempt, 0, 0)
  end
  if state == WAITING then
    unstand(id, priority, expires)
  else
    zrem(state == LEASED and leases or dead, id)
  end
  forget(id, born, now)
  hdels[jobs] = nil -- the new value takes the old one's place
  held = held - 1
  newly_expired = newly_expired + (expired and 1 or 0)
  return nil, born, expired
end

local function add(id, body, when, o, above)
  local due, born = dues[when], o.born
  if born == 0 then
    born = math.max(now, floor + 1, above + 1)
    if born > now then
      floor = math.max(floor, born)
    end
  end
  local value = (o.header_born == born and o.header or write_header(o, born)) .. body
  local n = #values
  values[n + 1], values[n + 2] = id, value
  local list = scores[o.priority]
  n = #list
  list[n + 1], list[n + 2] = due_texts[when], id
  if due < first_due then
    first_due = due
  end
  if o.ttl > 0 then
    if due <= swept then
      zadd(ttl, o.expires, id)
    elseif o.expires - due < slack then
      slack = o.expires - due
    end
    if o.expires < next_end then
      next_end = o.expires + 1
    end
  end
  if o.attempt > 0 then
    hset(tries, id, pack(RECORD, WAITING, born, o.attempt, 0, o.tries, o.priority, due, o.expires))
  end
  if o.attributes ~= '' then
    hset(info, id, '\0\0' .. o.attributes)
  end
  if #value + #o.attributes > top then
    top = #value + #o.attributes
  end
  if born > last_born then
    last_born = born
  end
  fresh[id], taken[id] = true, true
  held = held + 1
  return born
end

-- Carries out a request that nothing speaks against: its Moveds, or the born of all if they are all alike.
local function accept(kind, size, at, in_full)
  local moved, alike = {}, nil
  for index = 1, size do
    local id, when, o = ARGV[at], ARGV[at + 2], options[ARGV[at + 3]]
    local kept, was, expired
    if taken[id] then
      kept, was, expired = meet(id, kind)
    end
    local born = not kept and add(id, ARGV[at + 1], when, o, was or 0)
    alike = alike or born
    if kept or was or o.attempt > 0 or born ~= alike then
      in_full = true
    end
    if in_full then
      for earlier = #moved + 1, index - 1 do
        moved[earlier] = pack(MOVED, ACCEPTED, NO_REASON, alike, 0, dues[ARGV[at - 4 * (index - earlier) + 2]], 0)
      end
      moved[index] = kept or pack(MOVED, was and not expired and REPLACED or ACCEPTED,
        expired and BY_EXPIRY or NO_REASON, born, o.attempt, dues[when], was or 0)
    end
    at = at + 4
  end
  return (in_full or size == 0) and moved or alike
end

local answers, made_now, any = { now }, {}, false
for r = 1, #requests do
  local kind, size, mark, digest, life, at, made = unpack(requests[r], 1, 7)
  made = made_now[mark] or made
  local until_at, length = 0, 0
  if made then
    until_at, length = unpack_struct('>I8I2', made)
  end
  local answer
  if until_at > now then
    answer = sub(made, 11, 10 + length) == digest and { 'repeated', sub(made, 11 + length) } or 'm'
  else
    answer = refusal(kind, size, at)
    if not answer then
      any = true
      answer = accept(kind, size, at, mark ~= '')
      if mark ~= '' then
        local parts = { pack('>I8I2', now + life, #digest), digest }
        for index = 1, size do
          local id = ARGV[at + 4 * (index - 1)]
          parts[#parts + 1] = pack('>I2', #id) .. id .. answer[index]
        end
        made_now[mark] = table.concat(parts)
      end
    end
  end
  answers[#answers + 1] = answer
end

if any then
  flush()
  if top > largest or last_born > latest then
    call('HSET', meta, 'largest', top, 'latest', last_born)
  end
  if not known then
    call('ZADD', agenda, 'LT', '+inf', queue)
    call('PERSIST', meta)
  end
  for mark, made in pairs(made_now) do
    -- Redis only cleans up; a given clock may go slower than Redis's own.
    local spare = ARGV[1] == '' and 1 or 3600000
    call('SET', prefix .. ':mark:' .. mark, made, 'PX', unpack_struct('>I8', made) - now + spare)
  end
  announce(before)
end
return answers
