-- Page through the jobs of one state.
-- Modules: keys header queue find sweep
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 state · 4 jobs to show · 5 jobs to scan ·
--   6 priority · 7 instant · 8 id of the last place seen ('' thrice at the beginning)
-- Returns: { now, 1 if there is more else 0, priority, instant and id of the last place seen,
--   then id, header + body, record or false, instant, info or false for each job }
-- Touches: nothing

local now, room, state = q.clock(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local limit, scans = tonumber(ARGV[4]), tonumber(ARGV[5])
local last_priority, last_at, last_id = tonumber(ARGV[6] ~= '' and ARGV[6] or 0), ARGV[7], ARGV[8]
q.begin()
local text = q.text(now)
local answer = { now, 0, last_priority, last_at, last_id }

-- Up to `count` ids and scores of a set after the last place, from rank `from` on, up to rank `to`.
local function page(key, from, to, resume, count)
  if resume and last_at ~= '' then
    from = math.max(from, q.rank_after(key, last_at, last_id))
  end
  to = math.min(to, from + count - 1)
  return from <= to and call('ZRANGE', key, from, to, 'WITHSCORES') or {}
end

-- The places to show, in order: priority, id, score.
local places = {}

local function append_page(priority, list)
  for i = 1, #list, 2 do
    places[#places + 1] = { priority, list[i], list[i + 1] }
  end
end

if state == 'leased' or state == 'dead' then
  append_page(0, page(state == 'leased' and q.leases or q.dead, 0, huge, true, limit + 1))
elseif state == 'ready' then
  for priority = math.max(1, last_priority), 3 do
    local due = call('ZCOUNT', q.wait[priority], '-inf', text)
    append_page(priority, page(q.wait[priority], 0, due - 1, priority == last_priority, scans + 1 - #places))
  end
else
  for priority = 1, 3 do
    local due = call('ZCOUNT', q.wait[priority], '-inf', text)
    append_page(0, page(q.wait[priority], due, huge, true, limit + 1))
  end
  table.sort(places, function(a, b)
    local x, y = tonumber(a[3]), tonumber(b[3])
    return x < y or (x == y and q.is_before(a[2], b[2]))
  end)
end

local shown = 0
for i = 1, #places do
  local priority, id, at = unpack(places[i])
  if i > scans or room <= 0 then
    answer[2] = 1
    break
  end
  local raw, record = call('HGET', q.jobs, id), call('HGET', q.tries, id)
  local _, expires = q.read_header(raw or '')
  if expires and q.is_record(record) then
    expires = unpack_struct('>I8', record, #record - 7)
  elseif record then
    expires = nil
  end
  if expires and (state ~= 'ready' or expires == 0 or expires >= now) then
    if shown == limit then
      answer[2] = 1
      break
    end
    local note, n = q.informed > 0 and call('HGET', q.info, id), #answer
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = id, raw, record, at, note
    room, shown = room - #raw - (note and #note or 0), shown + 1
  end
  answer[3], answer[4], answer[5] = priority, at, id
end
return answer
