-- What every queue script stands on: the queue's keys, the clock, the forms in which jobs are kept, and a plan of
-- writes. The loader puts this text in front of each script, which finds it in the table `q`, but leaves out functions
-- that the script does not reach: Redis makes each of them anew in every run.
--
-- The key map (P is KEYS[1], `dt:{NN}:namespace/queue`; one hash tag, so one slot):
--   P:jobs      hash  id -> header + body
--   P:wait:1-3  zset  id by due_at; ready and delayed alike, the clock tells them apart
--   P:leases    zset  id by lease end
--   P:dead      zset  id by time of death
--   P:tries     hash  id -> delivery record, once a job was delivered or is dead; it then rules over the header
--   P:ttl       zset  id by expires_at, for jobs with a ttl that wait and were due when the sweep came by
--   P:info      hash  id -> last error (with its length before it) and attributes, for jobs that have either
--   P:meta      hash  rules, state (see RULES and STATE), expired (a total), sweeping (where an unfinished sweep is)
--   P:totals    hash  day (UTC, from the epoch on) -> what happened (see TOTALS), without the day that the state holds;
--                     day 0 is the sum of the days that are no longer kept one by one. Outlives a queue that was
--                     forgotten, for a while
--   P:mark:*    string  what a marked push answered
--   P:join:*    string  until I8 and how many finishes a join has seen, I8; the rest of the key is its name
--   P:result:*  string  kept_until I8, born I8 and the result of a finished job; the rest of the key is its id
--   P:repaired  hash  id -> the marks of its repairs (see push.lua); lives for as long as the latest of the marks
--   P:damaged   hash  id -> what was found of a job that cannot be read, set aside for people to look at
--   KEYS[2]     zset  `dt:{NN}:queues`: queue by a lower bound of its next lease end or expiry; the registry of
--                     queues and the reaper's agenda in one
--   dt:{NN}:floor  string  the highest floor of a queue of this partition that was forgotten; new ones begin with it
--
-- The sweep keeps delayed jobs out of P:ttl. Every waiting job with a ttl and due_at <= swept stands in P:ttl
-- (once `sweeping` is absent); each later one has expires_at - due_at >= slack, so none of them can have expired
-- before its due_at + slack. A queue without short ttls therefore sweeps almost nothing.
--
-- A script reads and validates first: begin() touches each key with a command of its type, so that foreign data
-- ends the script with WRONGTYPE before anything is written. commit() then removes before it adds: Redis refuses
-- a script over maxmemory at its first write that needs room, and lets one go on that has begun by giving room back.
--
-- P itself is never a key, and every script names two keys. So while a slot moves to another node of a Cluster, Redis
-- answers TRYAGAIN, and does not run a script where only some of the queue's keys are.
--
-- Functions hang in `q` and not in locals for speed: making a closure costs more the more locals it holds on to.

local call, pack, unpack_struct = redis.call, struct.pack, struct.unpack
local byte, sub, huge = string.byte, string.sub, math.huge

-- A delivery record: state, born, attempt, used, tries, priority, due_at, expires_at. Its first 13 bytes are the fence.
local RECORD = '>BI8I4I4I2BI8I8'
local RECORD_LENGTH = 36
local WAITING, LEASED, DEAD_TRIES, DEAD_KILLED, DEAD_EXPIRED = 0, 1, 2, 3, 4

-- What happened: event, reason, born, attempt, due_at, was. Codes are positions in codec.py's EVENTS and REASONS.
local MOVED = '>BBI8I4I8I8'
local ACCEPTED, KEPT, REPLACED, GIVEN_BACK, ACKED, RELEASED, LEASE_EXPIRED = 0, 1, 2, 4, 5, 6, 7
local DEAD, CANCELLED, RESCHEDULED, EXPIRED, DELETED, RESPAWNED = 8, 9, 10, 11, 13, 14
local NO_REASON, BY_TRIES, BY_EXPIRY, IS_WAITING, IS_LEASED, IS_DEAD, IS_RUNNING, UNFENCED = 0, 1, 3, 4, 5, 6, 7, 8

-- A header: flags, born, ttl, tries. Flags: priority 2 bits, form of the ttl 2 bits, code of the tries 3 bits, long
-- born 1 bit.
local TTL_SECONDS, TTL_MINUTES, TTL_ABSOLUTE = 1, 2, 3
local TRIES_BY_CODE, TRIES_FOLLOW = { [0] = 5, 1, 0, 2, 3, 10, 25 }, 7
local EPOCH = 1577836800000 -- 2020-01-01: five bytes of milliseconds last until 2054
local LONGEST_HEADER = 17

-- What P:meta keeps of the rules: 1 paused + 2 strict + 4 expired_to_dead + 8 kept + 16 offline, max_jobs, max_body;
-- and of the running state: floor, the latest born or end of the last job, swept, slack, the largest value that P:jobs
-- ever had; and then, once something has happened, the day of the last event (I4) and its totals, so that counting
-- costs no command of its own.
local RULES, STATE = '>BI8I8', '>I8I8I8I8I8'
local NO_SLACK = 2 ^ 52

local IDLE = 600000 -- IDLE_MS of stores/base.py: an empty queue is forgotten when it has not been used for this long

-- What happened on a day, in the order of job.Totals, and the place of each number.
local TOTALS, NO_TOTALS = '>I6I6I6I6I6I6I6I6I6', string.rep('\0', 54)
local N_ACCEPTED, N_DELIVERED, N_ACKED, N_RELEASED, N_LAPSED = 1, 2, 3, 4, 5
local N_DEAD, N_CANCELLED, N_EXPIRED, N_RESPAWNED = 6, 7, 8, 9
local DAY, TOTAL_DAYS = 86400000, 31
local COUNTED_STATE = 98 -- bytes of a state with totals, which begin at its 45th

local CHUNK = 4000 -- arguments that one unpack() can take; even, so that pairs stay together

-- A small key is a list that Redis searches from end to end, which makes many additions slow. A member of this length
-- makes it a table at once. No id can be it, as ids are printable, and it is gone before the script ends.
local LONG, MANY = string.rep('\0', 80), 64

local prefix = KEYS[1]
local q = {
  jobs = prefix .. ':jobs',
  tries = prefix .. ':tries',
  info = prefix .. ':info',
  meta = prefix .. ':meta',
  leases = prefix .. ':leases',
  dead = prefix .. ':dead',
  ttl = prefix .. ':ttl',
  damaged = prefix .. ':damaged',
  totals = prefix .. ':totals',
  repaired = prefix .. ':repaired',
  wait = { prefix .. ':wait:1', prefix .. ':wait:2', prefix .. ':wait:3' },
  agenda = KEYS[2],
  floors = sub(KEYS[2], 1, 7) .. ':floor',
  name = sub(prefix, 9),
  shapes = {},
  first_due = huge, -- the earliest due_at that the script planned
  now = 0,
}

-- The given instant, or this server's.
function q.clock(given)
  if given ~= '' then
    q.now = tonumber(given)
  else
    local time = call('TIME')
    q.now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return q.now
end

-- An instant as Redis reads it; Lua's own way loses digits.
function q.text(instant)
  return string.format('%.0f', instant)
end

-- How a header with these flags is read: form for struct, what born counts from, unit of the ttl, tries, priority, and
-- its length.
function q.shape_of(flags)
  local form, code = math.floor(flags / 4) % 4, math.floor(flags / 16) % 8
  local shape = { '>' .. (flags < 128 and 'I5' or 'I8'), flags < 128 and EPOCH or 0, 0, TRIES_BY_CODE[code], flags % 4 }
  if form == TTL_SECONDS or form == TTL_MINUTES then
    shape[1], shape[3] = shape[1] .. 'I2', form == TTL_SECONDS and 1000 or 60000
  elseif form == TTL_ABSOLUTE then
    shape[1], shape[3] = shape[1] .. 'I6', huge
  end
  if code == TRIES_FOLLOW then
    shape[1] = shape[1] .. 'I2'
  end
  shape[6] = shape[5] > 0 and 1 + struct.size(shape[1]) or huge
  q.shapes[flags] = shape
  return shape
end

-- Reads a header: born, expires_at, tries, priority, and where the body begins. Nothing if it is none of ours.
function q.read_header(raw)
  local flags = byte(raw) or 0
  local shape = q.shapes[flags] or q.shape_of(flags)
  if #raw < shape[6] then
    return nil
  end
  local unit, allowed = shape[3], shape[4]
  local born, one, two, three = unpack_struct(shape[1], raw, 2)
  born = born + shape[2]
  if unit == 0 then
    if allowed then
      return born, 0, allowed, shape[5], one
    end
    return born, 0, one, shape[5], two
  end
  local expires = unit == huge and one or born + one * unit
  if allowed then
    return born, expires, allowed, shape[5], two
  end
  return born, expires, two, shape[5], three
end

function q.read_rules(rules)
  local flags = 0
  q.max_jobs, q.max_body = 0, 0
  if rules then
    flags, q.max_jobs, q.max_body = unpack_struct(RULES, rules)
  end
  q.paused, q.strict, q.expired_to_dead = flags % 2 >= 1, flags % 4 >= 2, flags % 8 >= 4
  q.kept, q.offline = flags % 16 >= 8, flags % 32 >= 16
end

-- Above this every born of a new queue is.
function q.forgotten_floor()
  return tonumber(call('GET', q.floors) or 0) or 0
end

-- True for a queue without jobs, damaged entries and rules, which only its last push keeps from being forgotten.
function q.is_idle()
  local has_rules = q.paused or q.strict or q.expired_to_dead or q.kept or q.offline
  has_rules = has_rules or q.max_jobs > 0 or q.max_body > 0
  return not has_rules and q.aside == 0 and call('HLEN', q.jobs) == 0
end

-- Lets the totals of a queue that is forgotten for idleness go some time after it: soon if it was for one answer.
function q.age_totals()
  local accepted, days = 0, q.all_totals()
  for i = 2, #days, 2 do
    accepted = accepted + (#days[i] == #NO_TOTALS and unpack_struct('>I6', days[i]) or 0)
  end
  call('PEXPIRE', q.totals, q.text((accepted > 1 and TOTAL_DAYS or 1) * DAY))
end

-- Removes the last keys of a queue but for its totals. No born of its jobs may come again, so its floor lives on in the
-- partition's.
function q.forget_queue()
  q.put_day_away()
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
  q.held, q.recorded, q.informed, q.expiring, q.aside = call('HLEN', q.jobs), call('HLEN', q.tries), 0, 0, 0
  local wait = q.wait
  q.waiting = { 0, call('ZCARD', wait[2]), 0 }
  -- Most queues have none of these keys, and one command says so.
  if call('EXISTS', q.info, q.ttl, q.damaged, wait[1], wait[3]) > 0 then
    q.informed, q.expiring, q.aside = call('HLEN', q.info), call('ZCARD', q.ttl), call('HLEN', q.damaged)
    q.waiting[1], q.waiting[3] = call('ZCARD', wait[1]), call('ZCARD', wait[3])
  end
  q.least_held = q.held -- there are at least so many jobs
  q.found_jobs, q.found_leases, q.found_dead = q.held, call('ZCARD', q.leases), call('ZCARD', q.dead)
  call('ZCARD', q.agenda)
  q.day = math.floor(q.now / DAY)
  if q.counted_day ~= q.day then
    call('HLEN', q.totals)
  end
  q.plan_anew()
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

-- The plan: what goes and what comes, by key; how many jobs expired; the next end that the agenda must know of; what is
-- to be counted.
function q.plan_anew()
  q.zrems, q.hdels, q.zadds, q.hsets, q.expired, q.next_end, q.news = {}, {}, {}, {}, 0, huge, nil
end

-- Plans that the totals rise.
function q.count(place, by)
  q.news = q.news or {}
  q.news[place] = (q.news[place] or 0) + (by or 1)
end

-- Adds what was counted to the totals of the day.
function q.count_news()
  if q.counted_day ~= q.day then
    q.begin_day()
  end
  for place, by in pairs(q.news) do
    local at = 6 * place - 5
    local sum = unpack_struct('>I6', q.counted, at) + by
    q.counted = sub(q.counted, 1, at - 1) .. pack('>I6', sum) .. sub(q.counted, at + 6)
  end
end

-- Days and packed totals by turns; a later one rules over an earlier one of the same day. There are few more days than
-- TOTAL_DAYS.
function q.all_totals()
  local days, state = call('HGETALL', q.totals), call('HGET', q.meta, 'state')
  if state and #state == COUNTED_STATE then
    days[#days + 1] = string.format('%d', (unpack_struct('>I4', state, 41)))
    days[#days + 1] = sub(state, 45)
  end
  return days
end

-- Moves the totals of the day in the state to those of the other days.
function q.put_day_away()
  if q.counted then
    call('HSET', q.totals, q.counted_day, q.counted)
    q.counted, q.counted_day = nil, nil
  end
end

-- The first event of a day: days that are no longer kept one by one go into day 0. Where there are no totals yet, the
-- jobs that were there before counting began are its first ones.
function q.begin_day()
  q.put_day_away()
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

-- Plans that a job waits, its record and header being as they shall be.
function q.stand(id, priority, due, expires)
  q.zadd(q.wait[priority], due, id)
  q.first_due = math.min(q.first_due, due)
  if expires > 0 then
    if due <= q.swept then
      q.zadd(q.ttl, expires, id)
    else
      q.slack = math.min(q.slack, expires - due)
    end
    q.next_end = math.min(q.next_end, expires + 1)
  end
end

-- Plans that a job leaves waiting.
function q.unstand(id, priority, expires)
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

-- True for a delivery record of ours.
function q.is_record(record)
  return record and #record == RECORD_LENGTH and byte(record) <= DEAD_EXPIRED
end

-- Plans that a job that cannot be read is out of everybody's way; it must be out of its place. `answer` gets its id
-- and '' where others have a Moved.
function q.set_aside(id, raw, record, answer)
  q.hset(q.damaged, id, (raw or '') .. (record or ''))
  q.aside = q.aside + 1
  q.zrem(q.ttl, id)
  q.hdel(q.jobs, id)
  q.hdel(q.tries, id)
  q.hdel(q.info, id)
  answer[#answer + 1] = id
  answer[#answer + 1] = ''
end

-- Plans a death; the job must be out of its place. `job` is { born, attempt, used, tries, priority, due_at }.
function q.die(id, job, now, state)
  q.zadd(q.dead, now, id)
  q.hset(q.tries, id, pack(RECORD, state, job[1], job[2], job[3], job[4], job[5], job[6], 0))
  q.count(N_DEAD)
  return pack(MOVED, DEAD, state - DEAD_TRIES + BY_TRIES, job[1], job[2], 0, 0)
end

-- Plans the end of a job by its ttl; the job must be out of its place.
function q.expire(id, job, now)
  q.expired = q.expired + 1
  if q.expired_to_dead then
    return q.die(id, job, now, DEAD_EXPIRED)
  end
  q.forget(id, job[1])
  q.count(N_EXPIRED)
  return pack(MOVED, EXPIRED, NO_REASON, job[1], job[2], 0, 0)
end

-- Plans what becomes of a lease that ended: the job waits again from `due` on, or ends.
function q.settle(id, job, expires, now, due, event)
  q.zrem(q.leases, id)
  if event ~= GIVEN_BACK and job[4] > 0 and job[3] >= job[4] then
    return q.die(id, job, now, DEAD_TRIES)
  end
  if expires > 0 and math.max(now, due) > expires then
    return q.expire(id, job, now)
  end
  q.hset(q.tries, id, pack(RECORD, WAITING, job[1], job[2], job[3], job[4], job[5], due, expires))
  q.stand(id, job[5], due, expires)
  if event ~= GIVEN_BACK then
    q.count(event == RELEASED and N_RELEASED or N_LAPSED)
  end
  return pack(MOVED, event, NO_REASON, job[1], job[2], due, 0)
end

-- For a script that may have nothing to remove: Redis lets it write over maxmemory once it has begun with this.
function q.begin_with_removal()
  call('HDEL', q.meta, 'none')
end

-- Carries the plan out, keeps the agenda a lower bound, and begins a new plan.
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
  if q.news then
    q.count_news()
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
  q.plan_anew()
end

-- Tells all processes if something now waits that is due before all that waited `before`. A user without rights on the
-- channel has written all the same: waiting consumers find the job by their check of every second.
function q.announce(before)
  if q.first_due < before and not q.paused then
    q.waiting = { 1, 1, 1 }
    local first = q.earliest()
    if first < before then
      redis.pcall('PUBLISH', 'dt:wake', q.name .. ' ' .. q.text(first))
    end
  end
end

-- A lease that is held: its job as settle() wants it, and expires_at. Nothing if the fence does not fit.
function q.leased(id, fence)
  local record = call('HGET', q.tries, id)
  if not q.is_record(record) or sub(record, 1, #fence) ~= fence then
    return nil
  end
  local _, born, attempt, used, allowed, priority, due, expires = unpack_struct(RECORD, record)
  return { born, attempt, used, allowed, priority, due }, expires
end

-- Plans a new last error for a job; attributes stay. An empty error clears it.
function q.set_error(id, text)
  local before = call('HGET', q.info, id)
  local attributes = before and sub(before, 3 + unpack_struct('>I2', before)) or ''
  if text ~= '' or attributes ~= '' then
    q.hset(q.info, id, pack('>I2', #text) .. text .. attributes)
  elseif before then
    q.hdel(q.info, id)
  end
end

-- Headers of jobs (each at the front of its value), false where there is none. Reads at most `budget` bytes of
-- values, but at least one; what was not reached is missing from the end.
function q.heads_of(ids, budget)
  if #ids * q.largest <= budget then
    return q.fetch(q.jobs, ids)
  end
  local heads, bytes = {}, 0
  for i = 1, #ids do
    if bytes > budget then
      break
    end
    local raw = call('HGET', q.jobs, ids[i])
    bytes = bytes + (raw and #raw or 0)
    heads[i] = raw and sub(raw, 1, LONGEST_HEADER)
  end
  return heads
end

-- Jobs by id: { state, born, attempt, used, tries, priority, due_at, expires_at }, false where there is none, it
-- expired or cannot be read. While a job waits its due_at is not here but in the wait set. Bounded as heads_of.
function q.find(ids, now, budget)
  local records, found, bare, at = q.fetch(q.tries, ids), {}, {}, {}
  for i = 1, #ids do
    if records[i] then
      found[i] = q.is_record(records[i]) and { unpack_struct(RECORD, records[i]) }
    else
      bare[#bare + 1] = ids[i]
      at[#at + 1] = i
    end
  end
  local heads, reached = q.heads_of(bare, budget), #ids
  for i = 1, #bare do
    local head = heads[i]
    if head == nil then
      reached = at[i] - 1
      break
    end
    found[at[i]] = false
    if head then
      local born, expires, allowed, priority = q.read_header(head)
      found[at[i]] = born and { WAITING, born, 0, 0, allowed, priority, nil, expires } or false
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
function q.is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first member of a zset behind (score, id), whether or not that still stands there.
function q.rank_after(key, score, id)
  local low, high = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if q.is_before(id, call('ZRANGE', key, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- One bounded step of bringing jobs that fell due into P:ttl. True when the sweep has caught up with `now`.
-- `sweeping` is "priority:from:score:id": jobs due after `from` and up to `swept`; score and id are where it is.
function q.sweep(now, limit, budget)
  local target = now - q.slack - 1
  if not q.sweeping then
    if target <= q.swept then
      return true
    end
    q.sweeping = '1:' .. q.text(q.swept) .. '::'
    q.swept = target
  end
  while q.sweeping and limit > 0 do
    local place, from, score, id = string.match(q.sweeping, '^(%d):(%d+):(%d*):(.*)$')
    local key = q.wait[tonumber(place)]
    local first = score == '' and call('ZCOUNT', key, '-inf', from) or q.rank_after(key, score, id)
    local last = call('ZCOUNT', key, '-inf', q.text(q.swept)) - 1
    local ids, scores = {}, {}
    if first <= last then
      local range = call('ZRANGE', key, first, math.min(last, first + limit - 1), 'WITHSCORES')
      for i = 1, #range, 2 do
        ids[#ids + 1], scores[#scores + 1] = range[i], range[i + 1]
      end
    end
    local found, reached = q.find(ids, 0, budget)
    for i = 1, reached do
      if found[i] and found[i][8] > 0 then
        q.zadd(q.ttl, found[i][8], ids[i])
      end
    end
    limit = limit - reached
    if first + reached - 1 < last then
      q.sweeping = place .. ':' .. from .. ':' .. scores[reached] .. ':' .. ids[reached]
      limit = 0
    else
      q.sweeping = place ~= '3' and (place + 1) .. ':' .. from .. '::'
    end
  end
  q.hdel(q.meta, 'sweeping')
  if q.sweeping then
    q.hset(q.meta, 'sweeping', q.sweeping)
  end
  return not q.sweeping and target <= q.swept
end
