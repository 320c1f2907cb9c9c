-- Lease ready jobs to consumers, ask by ask.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 jobs to look at · 3 bytes of bodies to give · 4.. the asks: limit, ttr_ms, high, normal, low
-- Returns: { now, next_at or false, 1 if paused else 0, { number of deliveries per ask.. },
--   { id, moved.. } of jobs that had expired, { info or false per delivery } or false,
--   then id, header + body, record for each delivery }
--   Error DAMAGED: a waiting job has no body
-- Touches: wait leases tries jobs info dead ttl meta agenda

local now, looks, room = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
begin()
if paused then
  return { now, false, 1, {}, {}, false }
end

local asked, expired = {}, {}
local answer, size = { now, false, 0, asked, expired, false }, 6
local records, ends, leaving, seen = {}, {}, { {}, {}, {} }, { 0, 0, 0 }
local given, wasted = 0, 0 -- bytes of bodies delivered, and read in vain

-- Plans one delivery; false if there is no room for it any more.
local function deliver(id, raw, record, priority, due, lease_end)
  local born, expires, allowed, _, start = read_header(raw)
  local attempt, used = 0, 0
  if record then
    _, born, attempt, used, allowed, _, _, expires = unpack_struct(RECORD, record)
  end
  local counts = expires == 0 or expires >= now
  if counts then
    local length = #raw - start + 1
    if given > 0 and given + length > room then
      return false
    end
    given = given + length
    local leased_record = pack(RECORD, LEASED, born, attempt + 1, used + 1, allowed, priority, due, expires)
    answer[size + 1], answer[size + 2], answer[size + 3] = id, raw, leased_record
    size = size + 3
    local n = #records
    records[n + 1], records[n + 2] = id, leased_record
    ends[n + 1], ends[n + 2] = lease_end, id
  else
    wasted = wasted + #raw
    expired[#expired + 1] = id
    expired[#expired + 1] = expire(id, { born, attempt, used, allowed, priority, due }, now)
  end
  local gone = leaving[priority]
  gone[#gone + 1] = id
  if expires > 0 and expiring > 0 then
    zrem(ttl, id)
  end
  return true, counts
end

-- Leases up to `wanted` ready jobs of one priority; answers how many.
local function take(priority, wanted, lease_end)
  local got = 0
  while got < wanted and looks > 0 do
    local page = call('ZRANGEBYSCORE', wait[priority], '-inf', now, 'WITHSCORES',
      'LIMIT', seen[priority], math.min(wanted - got, looks))
    local ids = {}
    for i = 1, #page, 2 do
      ids[#ids + 1] = page[i]
    end
    if #ids == 0 then
      break
    end
    local known = recorded > 0 and fetch(tries, ids)
    local raws = #ids * largest <= room - given and fetch(jobs, ids)
    for i = 1, #ids do
      local raw = raws and raws[i] or not raws and call('HGET', jobs, ids[i])
      if not raw then
        error('DAMAGED ' .. queue .. ': the waiting job ' .. ids[i] .. ' has no body', 0)
      end
      local fits, counts = deliver(ids[i], raw, known and known[i], priority, tonumber(page[2 * i]), lease_end)
      if not fits or wasted > room then
        looks = 0
        break
      end
      looks, seen[priority], got = looks - 1, seen[priority] + 1, got + (counts and 1 or 0)
    end
  end
  return got
end

for at = 4, #ARGV, 5 do
  local limit, ttr = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local lease_end, got = string.format('%.0f', now + ttr), 0
  for priority = 1, 3 do
    local quota = strict and 0 or tonumber(ARGV[at + 1 + priority])
    got = got + take(priority, math.min(quota, limit - got), lease_end)
  end
  for priority = 1, 3 do
    got = got + take(priority, limit - got, lease_end)
  end
  if got > 0 and now + ttr < next_end then
    next_end = now + ttr
  end
  asked[#asked + 1] = got
end

if informed > 0 and #records > 0 then
  local ids = {}
  for i = 1, #records, 2 do
    ids[#ids + 1] = records[i]
  end
  answer[6] = fetch(info, ids)
end
for priority = 1, 3 do
  if #leaving[priority] > 0 then
    zrems[wait[priority]] = leaving[priority]
  end
end
if #records > 0 then
  zadds[leases] = ends
  for _, part in ipairs(hsets[tries] or {}) do -- records of jobs that died of age
    records[#records + 1] = part
  end
  hsets[tries] = records
end
commit()
local next_at = earliest()
if next_at < huge then
  answer[2] = next_at
end
return answer
