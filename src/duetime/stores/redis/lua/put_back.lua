-- Put lost jobs back, each by itself: under the born and attempt that it had, and once only.
-- Modules: keys header queue find add
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to hold at a time · 3 life_ms of the marks · 4.. groups with borns, as
--   q.read_group reads them; no id occurs twice
-- Returns: { now } if every job was accepted as it was given; otherwise { now, answer.. }, an answer per job:
--   ''            accepted as it was given
--   'k' .. moved  a packed Moved: kept, or accepted in the place of an expired job
--   'r' .. moved  repeated: it was put back before, and this is what was answered; without moved: it was accepted as it
--                 was given
--   text          refused: 'f max_jobs' queue_full · 'b index max_body' body_too_large · 'e index' expires_before_due
-- Touches: jobs wait tries info leases dead ttl meta agenda damaged repaired totals

local args = ARGV
local now, budget, life = q.clock(args[1]), tonumber(args[2]), tonumber(args[3])
q.begin()
local before = q.earliest()
local known = call('ZSCORE', q.agenda, q.name)

local groups, ids, cursor = {}, {}, 4
while cursor <= #args do
  local group
  group, cursor = q.read_group(cursor, true)
  for at = group.ids, group.bodies - 1, 3 do
    ids[#ids + 1] = args[at]
  end
  groups[#groups + 1] = group
end

-- The marks of an id follow each other: born I8, attempt I4, the length of what follows B, and the packed
-- Moved, or nothing if the job was accepted as it was given.
local marks, taken = q.fetch(q.repaired, ids), q.find_taken(ids, budget)
local FENCE = '>I8I4'

-- The answer that a mark of this born and attempt gives, nil if there is none.
local function repeated(list, fence)
  local at = 1
  while at <= #list do
    local last = at + 12 + byte(list, at + 12)
    if sub(list, at, at + 11) == fence then
      return 'r' .. sub(list, at + 13, last)
    end
    at = last + 1
  end
end

local answers, all_plain, index, added = { now }, true, 0, 0
local values, scores, records, repaired = {}, { {}, {}, {} }, {}, {}

local function refuse(id, body, due, expires)
  local is_full = q.max_jobs > 0 and not taken[id] and q.held + added >= q.max_jobs
  return q.refuse_job(index, body, due, expires) or is_full and 'f ' .. q.max_jobs
end

local n, r, k = 0, 0, 0 -- the lengths of values, records and repaired
for g = 1, #groups do
  local group = groups[g]
  local options, list = group.options, scores[group.options.priority]
  local attempt, tries, priority, expires = options.attempt, options.tries, options.priority, options.expires
  local suspicious = q.max_body > 0 or q.max_jobs > 0 or expires > 0 and group.high > expires
  local flags, tail = q.header_parts(options, false)
  local m, latest, largest = #list, 0, 0
  added = 0
  for i = 1, group.size do
    index = index + 1
    local at = group.ids + 3 * (i - 1)
    local id, due, born, body = args[at], args[at - 1], tonumber(args[at + 1]), args[group.bodies + i - 1]
    local fence, old, moved, kept = pack(FENCE, born, attempt), marks[index], '', nil
    local answer = old and repeated(old, fence) or suspicious and refuse(id, body, tonumber(due), expires)
    if not answer then
      if taken[id] then
        local was, expired
        kept, was, expired = q.resolve_taken(id, false, budget)
        moved = kept or expired and pack(MOVED, ACCEPTED, BY_EXPIRY, born, attempt, tonumber(due), was) or ''
      end
      answer = moved == '' and '' or 'k' .. moved
      repaired[k + 1], repaired[k + 2] = id, (old or '') .. fence .. string.char(#moved) .. moved
      k = k + 2
      if not kept then
        local value = q.write_header(flags, born, tail) .. body
        values[n + 1], values[n + 2] = id, value
        list[m + 1], list[m + 2] = due, id
        n, m, added, latest, largest = n + 2, m + 2, added + 1, math.max(latest, born), math.max(largest, #value)
        if attempt > 0 then
          records[r + 1], records[r + 2] = id, pack(RECORD, WAITING, born, attempt, 0, tries, priority, due, expires)
          r = r + 2
        end
        if options.attributes ~= '' then
          q.hset(q.info, id, '\0\0' .. options.attributes)
        end
        if expires > 0 then
          q.add_expiry(id, tonumber(due), expires)
        end
      end
    end
    all_plain = all_plain and answer == ''
    answers[index + 1] = answer
  end
  if added > 0 then
    q.note_added(added, group.low, latest, largest + #options.attributes)
  end
end

if k > 0 then
  if r > 0 then
    q.hsets[q.tries] = records
  end
  q.commit_added(values, scores)
  if n > 0 then
    q.register(known)
  end
  q.variadic('HSET', q.repaired, repaired)
  call('PEXPIRE', q.repaired, life)
  q.wake(before)
end
return all_plain and { now } or answers
