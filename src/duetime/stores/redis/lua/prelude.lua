-- What every queue script stands on: the queue's keys, the clock, the forms in which jobs are kept, and a plan of
-- writes. The loader puts this text in front of each script.
--
-- The key map (P is KEYS[1], `dt:{NN}:namespace/queue`; one hash tag, so one slot):
--   P:jobs      hash  id -> header + body
--   P:wait:1-3  zset  id by due_at; ready and delayed alike, the clock tells them apart
--   P:leases    zset  id by lease end
--   P:dead      zset  id by time of death
--   P:tries     hash  id -> delivery record, once a job was delivered or is dead; it then rules over the header
--   P:ttl       zset  id by expires_at, for jobs with a ttl that wait and were due when the sweep came by
--   P:info      hash  id -> last error and attributes, for jobs that have either
--   P:meta      hash  rules, floor, the latest born, expired total, where the sweep stands, the largest value so far
--   P:mark:*    string  what a marked push answered
--   dt:{NN}:queues  zset  queue by a lower bound of its next lease end or expiry: registry and reaper's agenda in one
--
-- The sweep keeps delayed jobs out of P:ttl. Every waiting job with a ttl and due_at <= swept stands in P:ttl
-- (once `sweeping` is absent); each later one has expires_at - due_at >= slack, so none of them can have expired
-- before its due_at + slack. A store without short ttls therefore sweeps almost nothing.
--
-- A script reads and validates first: survey() touches each key with a command of its type, so that foreign data
-- ends the script with WRONGTYPE before anything is written. commit() then removes before it adds: Redis refuses
-- a script over maxmemory at its first write that needs room, and lets one go on that has begun by giving room back.

local call = redis.call
local pack, unpack_struct = struct.pack, struct.unpack
local byte, sub, floor_of, huge = string.byte, string.sub, math.floor, math.huge

local prefix = KEYS[1]
local jobs, tries, info, meta = prefix .. ':jobs', prefix .. ':tries', prefix .. ':info', prefix .. ':meta'
local leases, dead, ttl = prefix .. ':leases', prefix .. ':dead', prefix .. ':ttl'
local wait = { prefix .. ':wait:1', prefix .. ':wait:2', prefix .. ':wait:3' }
local agenda = sub(prefix, 1, 7) .. ':queues'
local queue = sub(prefix, 9)

-- A delivery record: state, born, attempt, used, tries, priority, due_at, expires_at. Its first 13 bytes are the fence.
local RECORD = '>BI8I4I4I2BI8I8'
local FENCE = 13
local WAITING, LEASED, DEAD_TRIES, DEAD_KILLED, DEAD_EXPIRED = 0, 1, 2, 3, 4

-- What happened: event, reason, born, attempt, due_at, was. Codes are positions in codec.py's EVENTS and REASONS.
local MOVED = '>BBI8I4I8I8'
local ACCEPTED, KEPT, REPLACED, GIVEN_BACK, RELEASED, LEASE_EXPIRED = 0, 1, 2, 4, 6, 7
local DEAD, CANCELLED, RESCHEDULED, EXPIRED, DELETED, RESPAWNED = 8, 9, 10, 11, 13, 14
local NO_REASON, BY_TRIES, BY_KILL, BY_EXPIRY, IS_WAITING, IS_LEASED, IS_DEAD, IS_RUNNING = 0, 1, 2, 3, 4, 5, 6, 7

-- Flags of a header: priority 2 bits, form of the ttl 2 bits, tries 3 bits (a code), long form of born 1 bit.
local TRIES_BY_CODE = { [0] = 5, 1, 0, 2, 3, 10, 25 }
local TRIES_FOLLOW = 7
local NO_TTL, TTL_SECONDS, TTL_MINUTES, TTL_ABSOLUTE = 0, 1, 2, 3
local EPOCH = 1577836800000 -- 2020-01-01: five bytes of milliseconds last until 2054
local LONGEST_HEADER = 17

local CHUNK = 4000 -- arguments that one unpack() can take; even, so that pairs stay together

-- The given instant, or this server's.
local function clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = call('TIME')
  return time[1] * 1000 + floor_of(time[2] / 1000)
end

-- Reads a header: born, expires_at, tries, priority, and where the body begins.
local function read_header(raw)
  local flags = byte(raw, 1)
  local form, code = floor_of(flags / 4) % 4, floor_of(flags / 16) % 8
  local born, at, span
  if flags < 128 then
    born, at = unpack_struct('>I5', raw, 2)
    born = born + EPOCH
  else
    born, at = unpack_struct('>I8', raw, 2)
  end
  local expires = 0
  if form == TTL_SECONDS then
    span, at = unpack_struct('>I2', raw, at)
    expires = born + span * 1000
  elseif form == TTL_MINUTES then
    span, at = unpack_struct('>I2', raw, at)
    expires = born + span * 60000
  elseif form == TTL_ABSOLUTE then
    expires, at = unpack_struct('>I6', raw, at)
  end
  local allowed = TRIES_BY_CODE[code]
  if code == TRIES_FOLLOW then
    allowed, at = unpack_struct('>I2', raw, at)
  end
  return born, expires, allowed, flags % 4, at
end

-- The queue's rules and running values. Errors if a key holds a foreign type.
local paused, strict, expired_to_dead, max_jobs, max_body
local floor, latest, swept, slack, sweeping, largest
local held, recorded, informed, expiring

local function survey()
  local m = call('HMGET', meta, 'paused', 'strict', 'expired_to_dead', 'max_jobs', 'max_body',
    'floor', 'swept', 'slack', 'sweeping', 'largest', 'latest')
  paused, strict, expired_to_dead = m[1] == '1', m[2] == '1', m[3] == '1'
  max_jobs, max_body = tonumber(m[4] or 0), tonumber(m[5] or 0)
  floor, swept, slack = tonumber(m[6] or 0), tonumber(m[7] or 0), tonumber(m[8] or huge)
  sweeping, largest, latest = m[9], tonumber(m[10] or 0), tonumber(m[11] or 0)
  held, recorded, informed = call('HLEN', jobs), call('HLEN', tries), call('HLEN', info)
  expiring = call('ZCARD', ttl)
  call('ZCARD', leases)
  call('ZCARD', dead)
  call('ZCARD', agenda)
  call('ZCARD', wait[1])
  call('ZCARD', wait[2])
  call('ZCARD', wait[3])
end

-- The earliest due_at of all that wait; huge if nothing does.
local function earliest()
  local first = huge
  for priority = 1, 3 do
    local head = call('ZRANGE', wait[priority], 0, 0, 'WITHSCORES')
    if head[2] and tonumber(head[2]) < first then
      first = tonumber(head[2])
    end
  end
  return first
end

-- One command over many arguments.
local function variadic(command, key, arguments)
  for first = 1, #arguments, CHUNK do
    call(command, key, unpack(arguments, first, math.min(first + CHUNK - 1, #arguments)))
  end
end

-- HMGET over many ids.
local function fetch(key, ids)
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

-- The plan: what goes and what comes, by key, and what changes in P:meta.
local zrems, hdels, zadds, hsets, old_floor, old_slack, newly_expired, next_end
local first_due = huge

local function plan_anew()
  zrems, hdels, zadds, hsets = {}, {}, {}, {}
  old_floor, old_slack, newly_expired, next_end = floor, slack, 0, huge
end

-- The first step of every script that writes.
local function begin()
  survey()
  plan_anew()
end

local function append(lists, key, one, two)
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

local function zrem(key, id) append(zrems, key, id) end
local function hdel(key, id) append(hdels, key, id) end
local function zadd(key, score, id) append(zadds, key, score, id) end
local function hset(key, id, value) append(hsets, key, id, value) end

-- For a script that may have nothing to remove: Redis lets it write over maxmemory once it has begun with this.
local function begin_with_removal()
  call('HDEL', meta, 'none')
end

-- Plans that a job waits, its record and header being as they shall be.
local function stand(id, priority, due, expires)
  zadd(wait[priority], due, id)
  if due < first_due then
    first_due = due
  end
  if expires > 0 then
    if due <= swept then
      zadd(ttl, expires, id)
    elseif expires - due < slack then
      slack = expires - due
    end
    if expires < next_end then
      next_end = expires + 1
    end
  end
end

-- Plans that a job leaves waiting.
local function unstand(id, priority, expires)
  zrem(wait[priority], id)
  if expires > 0 and expiring > 0 then
    zrem(ttl, id)
  end
end

-- Plans that a job is gone from everything but its place.
local function forget(id, born, now)
  hdel(jobs, id)
  if recorded > 0 then
    hdel(tries, id)
  end
  if informed > 0 then
    hdel(info, id)
  end
  if born >= now and born > floor then
    floor = born
  end
end

-- Plans a death; the job must be out of its place. `job` is { born, attempt, used, tries, priority, due_at }.
local function die(id, job, now, state)
  zadd(dead, now, id)
  hset(tries, id, pack(RECORD, state, job[1], job[2], job[3], job[4], job[5], job[6], 0))
  return pack(MOVED, DEAD, state - DEAD_TRIES + BY_TRIES, job[1], job[2], 0, 0)
end

-- Plans the end of a job by its ttl; the job must be out of its place.
local function expire(id, job, now)
  newly_expired = newly_expired + 1
  if expired_to_dead then
    return die(id, job, now, DEAD_EXPIRED)
  end
  forget(id, job[1], now)
  return pack(MOVED, EXPIRED, NO_REASON, job[1], job[2], 0, 0)
end

-- Plans what becomes of a lease that ended: the job waits again from `due` on, or ends.
local function settle(id, job, expires, now, due, event)
  zrem(leases, id)
  if event ~= GIVEN_BACK and job[4] > 0 and job[3] >= job[4] then
    return die(id, job, now, DEAD_TRIES)
  end
  if expires > 0 and math.max(now, due) > expires then
    return expire(id, job, now)
  end
  hset(tries, id, pack(RECORD, WAITING, job[1], job[2], job[3], job[4], job[5], due, expires))
  stand(id, job[5], due, expires)
  return pack(MOVED, event, NO_REASON, job[1], job[2], due, 0)
end

-- Carries the plan out, keeps the agenda a lower bound, and begins a new plan.
local function commit()
  for key, ids in pairs(zrems) do variadic('ZREM', key, ids) end
  for key, ids in pairs(hdels) do variadic('HDEL', key, ids) end
  for key, pairs_of in pairs(hsets) do variadic('HSET', key, pairs_of) end
  for key, pairs_of in pairs(zadds) do variadic('ZADD', key, pairs_of) end
  if floor > old_floor then
    call('HSET', meta, 'floor', floor)
  end
  if slack < old_slack then
    call('HSET', meta, 'slack', slack)
  end
  if newly_expired > 0 then
    call('HINCRBY', meta, 'expired', newly_expired)
  end
  if next_end < huge then
    call('ZADD', agenda, 'LT', next_end, queue)
  end
  plan_anew()
end

-- Tells all processes if something now waits that is due before all that waited `before`.
local function announce(before)
  if first_due < before and not paused then
    local first = earliest()
    if first < before then
      call('PUBLISH', 'dt:wake', queue .. ' ' .. string.format('%.0f', first))
    end
  end
end

-- A lease that is held: its job as settle() wants it, and expires_at. Nothing if the fence does not fit.
local function leased(id, fence)
  local record = call('HGET', tries, id)
  if not record or sub(record, 1, FENCE) ~= fence then
    return nil
  end
  local _, born, attempt, used, allowed, priority, due, expires = unpack_struct(RECORD, record)
  return { born, attempt, used, allowed, priority, due }, expires
end

-- Plans a new last error for a job; attributes stay. An empty error clears it.
local function set_error(id, text)
  local before = call('HGET', info, id)
  local attributes = before and sub(before, 3 + unpack_struct('>I2', before)) or ''
  if text == '' and attributes == '' then
    if before then
      hdel(info, id)
    end
  else
    hset(info, id, pack('>I2', #text) .. text .. attributes)
  end
end

-- Headers of jobs (each at the front of its value), false where there is none. Reads at most `budget` bytes of
-- values, but at least one; what was not reached is missing from the end.
local function heads_of(ids, budget)
  if #ids * largest <= budget then
    return fetch(jobs, ids)
  end
  local heads, bytes = {}, 0
  for i = 1, #ids do
    if bytes > budget then
      break
    end
    local raw = call('HGET', jobs, ids[i])
    bytes = bytes + (raw and #raw or 0)
    heads[i] = raw and sub(raw, 1, LONGEST_HEADER)
  end
  return heads
end

-- Jobs by id: { state, born, attempt, used, tries, priority, due_at, expires_at }, false where there is none or it
-- expired. While a job waits its due_at is not here but in the wait set. Bounded as heads_of.
local function find(ids, now, budget)
  local records, found, bare, at = fetch(tries, ids), {}, {}, {}
  for i = 1, #ids do
    if records[i] then
      found[i] = { unpack_struct(RECORD, records[i]) }
    else
      bare[#bare + 1] = ids[i]
      at[#at + 1] = i
    end
  end
  local heads, reached = heads_of(bare, budget), #ids
  for i = 1, #bare do
    local head = heads[i]
    if head == nil then
      reached = at[i] - 1
      break
    end
    found[at[i]] = false
    if head then
      local born, expires, allowed, priority = read_header(head)
      found[at[i]] = { WAITING, born, 0, 0, allowed, priority, nil, expires }
    end
  end
  for i = 1, reached do
    local job = found[i]
    if job and job[1] == WAITING and job[8] > 0 and job[8] < now then
      found[i] = false
    end
  end
  return found, reached
end

-- Order of ids. Lua's own < follows the server's locale.
local function before_in_bytes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first member of a zset behind (score, id), whether or not that still stands there.
local function rank_after(key, score, id)
  local low, high = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = floor_of((low + high) / 2)
    if before_in_bytes(id, call('ZRANGE', key, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- One bounded step of bringing jobs that fell due into P:ttl. True when the sweep has caught up with `now`.
-- `sweeping` is "priority:from:score:id": jobs due after `from` and up to `swept`; score and id are where it is.
local function sweep(now, limit, budget)
  local target = now - slack - 1
  if not sweeping then
    if slack == huge or target <= swept then
      return true
    end
    sweeping = '1:' .. string.format('%.0f', swept) .. '::'
    swept = target
  end
  while sweeping and limit > 0 do
    local place, from, score, id = string.match(sweeping, '^(%d):(%d+):(%d*):(.*)$')
    local key = wait[tonumber(place)]
    local first = score == '' and call('ZCOUNT', key, '-inf', from) or rank_after(key, score, id)
    local last = call('ZCOUNT', key, '-inf', string.format('%.0f', swept)) - 1
    local ids, scores = {}, {}
    if first <= last then
      local range = call('ZRANGE', key, first, math.min(last, first + limit - 1), 'WITHSCORES')
      for i = 1, #range, 2 do
        ids[#ids + 1], scores[#scores + 1] = range[i], range[i + 1]
      end
    end
    local found, reached = find(ids, 0, budget)
    for i = 1, reached do
      if found[i] and found[i][8] > 0 then
        zadd(ttl, found[i][8], ids[i])
      end
    end
    limit = limit - reached
    if first + reached - 1 < last then
      sweeping = place .. ':' .. from .. ':' .. scores[reached] .. ':' .. ids[reached]
      limit = 0
    else
      sweeping = place ~= '3' and (place + 1) .. ':' .. from .. '::'
    end
  end
  hdel(meta, 'sweeping')
  if sweeping then
    hset(meta, 'sweeping', sweeping)
  end
  hset(meta, 'swept', string.format('%.0f', swept))
  return not sweeping and target <= swept
end
