-- Finish jobs: they are gone, the jobs that follow from them wait, and their results are kept.
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 how many results a wake names · 4.. the finishes, in which no id
--   stands twice, but a job may be followed by one of its own id. A finish is id · fence · result · for how many ms
--   it is kept, 0 for none · name of its join or '' · of how many · its life in ms · number of jobs of the join ·
--   number of jobs that follow · these jobs · those of the join. Such a job is id · how (as in push) · due_at, or '+'
--   and its delay · body
-- Returns: { now, answer.. }, an answer per finish: { how many have joined, packed Moved.. } of the jobs that follow,
--   with those of the join if all have joined; or text: 'g' gone already · 'l' lease lost · 'b index max_body' and
--   'e index', refused as in push, and then the lease is still held
-- Touches: leases jobs tries info wait ttl meta agenda damaged totals result join

local now, budget, most_named = q.clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
q.begin()
local before = q.earliest()

-- Unlike push, this writes every header in its longest form: few jobs are delayed here for long.
local function write_header(job, born)
  local flags, header = job.priority + 16 * TRIES_FOLLOW, pack('>I8', born)
  if job.expires > 0 then
    flags, header = flags + 4 * TTL_ABSOLUTE, header .. pack('>I6', job.expires)
  end
  return string.char(flags + 128) .. header .. pack('>I2', job.tries)
end

-- The jobs that follow one finish, from `at` on.
local function read_jobs(at, count)
  local jobs = {}
  for i = 1, count do
    local how, when = ARGV[at + 1], ARGV[at + 2]
    local lasts, allowed, priority, _, _, rest = unpack_struct('>I8I2BI4I8', how)
    jobs[i] = { id = ARGV[at], body = ARGV[at + 3], tries = allowed, priority = priority, attributes = sub(how, rest),
      expires = lasts > 0 and now + lasts or 0, due = tonumber(when) + (sub(when, 1, 1) == '+' and now or 0) }
    at = at + 4
  end
  return jobs
end

local function refusal(jobs, count)
  for i = 1, count do
    if q.max_body > 0 and #jobs[i].body > q.max_body then
      return 'b ' .. i .. ' ' .. q.max_body
    end
    if jobs[i].expires > 0 and jobs[i].due > jobs[i].expires then
      return 'e ' .. i
    end
  end
end

-- A job whose id is taken: the Moved that says it is kept; or, once the end of an expired one is planned, its born.
local function meet(id)
  local old = q.find({ id }, 0, budget)[1]
  if not old then -- the new job takes the place of one that cannot be read
    q.set_aside(id, call('HGET', q.jobs, id), call('HGET', q.tries, id), {})
    for _, place in ipairs({ q.wait[1], q.wait[2], q.wait[3], q.leases, q.dead }) do
      q.zrem(place, id)
    end
    return nil
  end
  local state, born, attempt, priority, expires = old[1], old[2], old[3], old[6], old[8]
  if state ~= WAITING then
    return pack(MOVED, KEPT, state == LEASED and IS_LEASED or IS_DEAD, born, attempt, 0, 0)
  end
  if expires == 0 or expires >= now then
    return pack(MOVED, KEPT, IS_WAITING, born, attempt, tonumber(call('ZSCORE', q.wait[priority], id)), 0)
  end
  q.unstand(id, priority, expires)
  q.forget(id, born)
  q.expired = q.expired + 1
  q.count(N_EXPIRED)
  return nil, born
end

-- The ids of jobs that this call has finished and added so far, and has not written.
local gone, fresh = {}, {}

-- Plans a job that follows; answers its Moved.
local function add(job)
  local kept, was
  if fresh[job.id] then -- it is written first, so that it can be found
    q.commit()
    gone, fresh, q.recorded, q.informed, q.expiring = {}, {}, 1, 1, 1
  end
  if not gone[job.id] and call('HEXISTS', q.jobs, job.id) == 1 then
    kept, was = meet(job.id)
  end
  if kept then
    return kept
  end
  local born = math.max(now, q.floor + 1)
  if born > now then
    q.floor = math.max(q.floor, born)
  end
  local value = write_header(job, born) .. job.body
  q.hset(q.jobs, job.id, value)
  q.stand(job.id, job.priority, job.due, job.expires)
  if job.attributes ~= '' then
    q.hset(q.info, job.id, '\0\0' .. job.attributes)
  end
  q.latest, q.largest = math.max(q.latest, born), math.max(q.largest, #value + #job.attributes)
  q.count(N_ACCEPTED)
  fresh[job.id] = true
  return pack(MOVED, ACCEPTED, was and BY_EXPIRY or NO_REASON, born, 0, job.due, was or 0)
end

-- How many finishes a join has seen, by its name: what is kept, and what this call has changed.
local joins = {}

local function joined_so_far(name)
  if not joins[name] then
    local kept = redis.pcall('GET', prefix .. ':join:' .. name) -- foreign data counts as nothing, and goes
    local until_at, count = 0, 0
    if type(kept) == 'string' and #kept == 16 then
      until_at, count = unpack_struct('>I8I8', kept)
    end
    joins[name] = { count = until_at > now and count or 0 }
  end
  return joins[name].count
end

local answers, results, named, any, at = { now }, {}, {}, false, 4
while at < #ARGV do
  local id, fence, result, life = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local name, of, lasts = ARGV[at + 4], tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local of_join, count = tonumber(ARGV[at + 7]), tonumber(ARGV[at + 8])
  local job, jobs = not gone[id] and q.leased(id, fence), read_jobs(at + 9, count + of_join)
  local joined = name ~= '' and joined_so_far(name) + 1 or 0
  if name ~= '' and joined == of then
    count = count + of_join
  end
  local answer
  if not job then
    answer = q.find({ id }, now, budget)[1] and 'l' or 'g'
  else
    answer = refusal(jobs, count)
  end
  if not answer then
    any, answer = true, { joined }
    q.zrem(q.leases, id)
    q.forget(id, job[1])
    q.count(N_ACKED)
    gone[id] = true
    for i = 1, count do
      answer[i + 1] = add(jobs[i])
    end
    if name ~= '' then
      joins[name] = { count = joined == of and 0 or joined, lasts = joined == of and 0 or lasts, changed = true }
    end
    if life > 0 then
      named[#named + 1] = id
      results[#results + 1] = { id, pack('>I8I8', now + life, job[1]) .. result, life }
    end
  end
  answers[#answers + 1] = answer
  at = at + 9 + 4 * #jobs
end

if any then
  q.commit()
  -- Redis only cleans up; a given clock may go slower than Redis's own.
  local spare = ARGV[1] == '' and 1 or 3600000
  for name, join in pairs(joins) do
    local key = prefix .. ':join:' .. name
    if join.changed and join.count > 0 then
      call('SET', key, pack('>I8I8', now + join.lasts, join.count), 'PX', q.text(join.lasts + spare))
    elseif join.changed then
      call('UNLINK', key)
    end
  end
  for i = 1, #results do
    call('SET', prefix .. ':result:' .. results[i][1], results[i][2], 'PX', q.text(results[i][3] + spare))
  end
  q.announce(before)
  if #named > 0 then
    redis.pcall('PUBLISH', 'dt:wake', q.name .. ' r' .. (#named <= most_named and table.concat(named, '\n') or ''))
  end
end
return answers
