-- Finish jobs: they are gone.
-- Modules: keys header queue find
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 the latest born among the leases · 4 their fences in one piece ·
--   5.. their ids, each once
-- Returns: one letter per lease: a acked, g gone already, l lease lost
-- Touches: leases jobs tries info meta agenda totals

local now, budget, fences = q.clock(ARGV[1]), tonumber(ARGV[2]), ARGV[4]
q.begin()
local ids = { unpack(ARGV, 5) }
local records, finished, letters, size = q.fetch(q.tries, ids), {}, {}, #fences / #ids
for i = 1, #ids do
  local record = records[i]
  if record and sub(record, 1, size) == sub(fences, size * (i - 1) + 1, size * i) then
    letters[i], finished[#finished + 1] = 'a', ids[i]
  else
    letters[i] = q.find({ ids[i] }, now, budget)[1] and 'l' or 'g'
  end
end
if #finished > 0 then
  -- Leases that are not held may name any born, so it counts only where it was compared.
  if #finished == #ids then
    q.floor = math.max(q.floor, tonumber(ARGV[3]))
  else
    for i = 1, #ids do
      q.floor = math.max(q.floor, letters[i] == 'a' and unpack_struct('>I8', records[i], 2) or 0)
    end
  end
  q.zrems[q.leases], q.hdels[q.jobs], q.hdels[q.tries] = finished, finished, finished
  if q.informed > 0 then
    q.hdels[q.info] = finished
  end
  q.count(N_ACKED, #finished)
  q.commit()
end
return table.concat(letters)
