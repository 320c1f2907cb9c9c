-- Finish jobs: they are gone.
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 the latest born among the leases · 4 their fences in one piece ·
--   5.. their ids, each once
-- Returns: one letter per lease: a acked, g gone already, l lease lost
-- Touches: leases jobs tries info meta

local now, budget, fences = q.clock(ARGV[1]), tonumber(ARGV[2]), ARGV[4]
q.begin()
local ids, ahead = { unpack(ARGV, 5) }, tonumber(ARGV[3]) >= now
local records, finished, letters, size = q.fetch(q.tries, ids), {}, {}, #fences / #ids
for i = 1, #ids do
  local record = records[i]
  if record and sub(record, 1, size) == sub(fences, size * (i - 1) + 1, size * i) then
    letters[i], finished[#finished + 1] = 'a', ids[i]
    if ahead then
      local born = unpack_struct('>I8', record, 2)
      q.floor = math.max(q.floor, born >= now and born or 0)
    end
  else
    letters[i] = q.find({ ids[i] }, now, budget)[1] and 'l' or 'g'
  end
end
if #finished > 0 then
  q.zrems[q.leases], q.hdels[q.jobs], q.hdels[q.tries] = finished, finished, finished
  if q.informed > 0 then
    q.hdels[q.info] = finished
  end
  q.commit()
end
return table.concat(letters)
