-- Finish jobs: they are gone, the jobs that follow from them wait, and their results are kept.
-- Modules: keys header queue find endings add
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 how many results a wake names · 4.. the finishes, in which no id
--   occurs twice, but a job may be followed by one of its own id. A finish is id · fence · result · for how many ms
--   it is kept, 0 for none · name of its join or '' · of how many · its life in ms · number of jobs of the join ·
--   number of jobs that follow · these jobs · those of the join. Such a job is id · options, as q.read_options reads
--   them · due_at, or '+' and its delay · body
-- Returns: { now, answer.. }, an answer per finish: { how many have joined, packed Moved.. } of the jobs that follow,
--   with those of the join if all have joined; or text: 'g' gone already · 'l' lease lost · 'b index max_body' and
--   'e index', refused as in push, and then the lease is still held
-- Touches: leases jobs tries info wait dead ttl meta agenda damaged totals result join

local now, budget, most_named = q.clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
q.begin()
local before = q.earliest()

-- The jobs that follow one finish, from `at` on.
local function read_jobs(at, count)
  local jobs = {}
  for i = 1, count do
    local when = ARGV[at + 2]
    jobs[i] = { id = ARGV[at], options = q.read_options(ARGV[at + 1]), body = ARGV[at + 3],
      due = tonumber(when) + (sub(when, 1, 1) == '+' and now or 0) }
    at = at + 4
  end
  return jobs
end

local function refuse(jobs, count)
  for i = 1, count do
    local reason = q.refuse_job(i, jobs[i].body, jobs[i].due, jobs[i].options.expires)
    if reason then
      return reason
    end
  end
end

-- The ids of jobs that this call has finished and added so far, and has not written.
local gone, fresh = {}, {}

-- Plans a job that follows; returns its Moved.
local function add(job)
  local id, options, due, kept, was = job.id, job.options, job.due, nil, nil
  if fresh[id] then -- it is written first, so that it can be found
    q.commit()
    gone, fresh, q.recorded, q.informed, q.expiring = {}, {}, 1, 1, 1
  end
  if not gone[id] and call('HEXISTS', q.jobs, id) == 1 then
    kept, was = q.resolve_taken(id, false, budget)
  end
  if kept then
    return kept
  end
  local born = q.new_born(0)
  local flags, tail = q.header_parts(options, born == now)
  local value = q.write_header(flags, born, tail) .. job.body
  q.hset(q.jobs, id, value)
  q.add_waiting(id, options.priority, due, options.expires)
  if options.attributes ~= '' then
    q.hset(q.info, id, '\0\0' .. options.attributes)
  end
  q.note_added(1, due, born, #value + #options.attributes)
  fresh[id] = true
  return pack(MOVED, ACCEPTED, was and BY_EXPIRY or NO_REASON, born, 0, due, was or 0)
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
  local job, jobs = not gone[id] and q.held_lease(id, fence), read_jobs(at + 9, count + of_join)
  local joined = name ~= '' and joined_so_far(name) + 1 or 0
  if name ~= '' and joined == of then
    count = count + of_join
  end
  local answer
  if not job then
    answer = q.find({ id }, now, budget)[1] and 'l' or 'g'
  else
    answer = refuse(jobs, count)
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
  q.wake(before)
  if #named > 0 then
    redis.pcall('PUBLISH', 'dt:wake', q.name .. ' r' .. (#named <= most_named and table.concat(named, '\n') or ''))
  end
end
return answers
