-- Lease ready jobs to consumers, ask by ask.
-- Modules: keys header queue find endings
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 jobs to scan · 3 bytes of bodies and attributes to give · 4.. the asks: limit,
--   ttr_ms, high, normal, low
-- Returns: { now, next_at or false, 1 if paused else 0, { number of deliveries per ask.. },
--   { id, moved.. } of jobs that had expired ('' for moved: the job cannot be read and was set aside), and of the
--   deliveries { id.. }, their records in one piece, { header + body.. } and { info or false.. }, or false if none
--   has any }
-- Touches: wait leases tries jobs info dead ttl meta agenda damaged totals

local now, scans_left, room = q.clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
q.begin()
if q.paused then
  return { now, false, 1, {}, {}, {}, '', {}, false }
end

local asked, expired, names, raws, records, values, ends = {}, {}, {}, {}, {}, {}, {}
local seen, given, wasted = { 0, 0, 0 }, 0, 0 -- jobs scanned, bytes delivered, bytes read for nothing

-- Plans deliveries of one page of ready jobs; answers how many. `page` is id, due_at, id, due_at ...
local function deliver(page, priority, lease_end)
  local ids, size, before, scanned = {}, #raws, #raws, 0
  for i = 1, #page, 2 do
    ids[#ids + 1] = page[i]
  end
  local known = q.recorded > 0 and q.fetch(q.tries, ids)
  local bodies = #ids * q.largest <= room - given and q.fetch(q.jobs, ids)
  local read_header, expiring = q.read_header, q.expiring > 0
  for i = 1, #ids do
    local id, raw = ids[i], bodies and bodies[i]
    if not bodies then
      raw = call('HGET', q.jobs, id)
    end
    local record, attempt, used, due = known and known[i], 0, 0, tonumber(page[2 * i])
    local born, expires, allowed, _, start = read_header(raw or '')
    if born and q.is_record(record) then
      _, born, attempt, used, allowed, _, _, expires = unpack_struct(RECORD, record)
    elseif record then
      born = nil
    end
    if not born then
      q.set_aside(id, raw, record, expired)
      expires, wasted = 0, wasted + (raw and #raw or 0)
    elseif expires > 0 and expires < now then
      wasted = wasted + #raw
      expired[#expired + 1] = id
      expired[#expired + 1] = q.expire(id, { born, attempt, used, allowed, priority, due }, now)
    else
      local length = #raw - start + 1 + (q.informed > 0 and call('HSTRLEN', q.info, id) or 0)
      if given > 0 and given + length > room then
        scans_left = 0
        break
      end
      given, size = given + length, size + 1
      local n = 2 * size
      record = pack(RECORD, LEASED, born, attempt + 1, used + 1, allowed, priority, due, expires)
      names[size], raws[size], records[size] = id, raw, record
      values[n - 1], values[n], ends[n - 1], ends[n] = id, record, lease_end, id
    end
    scanned = i
    if expiring and expires > 0 then
      q.zrem(q.ttl, id)
    end
    if wasted > room then
      scans_left = 0
      break
    end
  end
  scans_left, seen[priority] = math.max(0, scans_left - scanned), seen[priority] + scanned
  return size - before
end

-- Leases up to `wanted` ready jobs of one priority; answers how many.
local function lease_from(priority, wanted, lease_end)
  local got = 0
  while got < wanted and scans_left > 0 and seen[priority] < q.waiting[priority] do
    local page = call('ZRANGEBYSCORE', q.wait[priority], '-inf', now, 'WITHSCORES',
      'LIMIT', seen[priority], math.min(wanted - got, scans_left))
    if #page == 0 then
      break
    end
    got = got + deliver(page, priority, lease_end)
  end
  return got
end

for at = 4, #ARGV, 5 do
  local limit, ttr = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local lease_end, got = q.text(now + ttr), 0
  if not q.strict then
    for priority = 1, 3 do
      got = got + lease_from(priority, math.min(tonumber(ARGV[at + 1 + priority]), limit - got), lease_end)
    end
  end
  for priority = 1, 3 do
    got = got + lease_from(priority, limit - got, lease_end)
  end
  if got > 0 then
    q.next_end = math.min(q.next_end, now + ttr)
  end
  asked[#asked + 1] = got
end

local infos = false
if #raws > 0 then
  infos = q.informed > 0 and q.fetch(q.info, names)
  q.zadds[q.leases] = ends
  q.count(N_DELIVERED, #raws)
  local died = q.hsets[q.tries] -- records of jobs that died of age
  if died then
    for i = 1, #values do
      died[#died + 1] = values[i]
    end
  else
    q.hsets[q.tries] = values
  end
end
for priority = 1, 3 do
  if seen[priority] > 0 then
    -- What was scanned is what came first.
    call('ZREMRANGEBYRANK', q.wait[priority], 0, seen[priority] - 1)
  end
end
q.commit()
local next_at = q.earliest()
return { now, next_at < huge and next_at, 0, asked, expired, names, table.concat(records), raws, infos }
