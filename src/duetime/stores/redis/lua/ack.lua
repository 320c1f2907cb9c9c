-- Finish jobs: they are gone.
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3 the latest born among the leases · 4 number of leases · 5.. their
--   ids, each once, then their fences
-- Returns: one letter per lease: a acked, g gone already, l lease lost
-- Touches: leases jobs tries info meta

local now, budget, count = q.clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
q.begin()
local args, ids = ARGV, { unpack(ARGV, 5, 4 + tonumber(ARGV[4])) }
local records, finished, letters = q.fetch(q.tries, ids), {}, {}
for i = 1, count do
  local record, fence = records[i], args[4 + count + i]
  if record and sub(record, 1, #fence) == fence then
    letters[i], finished[#finished + 1] = 'a', ids[i]
    if tonumber(args[3]) >= now then
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
