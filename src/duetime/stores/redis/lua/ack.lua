-- Finish jobs: they are gone.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 now or '' · 2 bytes of values to read · 3.. pairs of id and fence
-- Returns: one letter per pair: a acked, g gone already, l lease lost
-- Touches: leases jobs tries info meta

local now, budget = clock(ARGV[1]), tonumber(ARGV[2])
begin()
local ids = {}
for i = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local records, letters, done, finished = fetch(tries, ids), {}, {}, {}
for i = 1, #ids do
  local id, record = ids[i], records[i]
  if done[id] then
    letters[i] = 'g'
  elseif record and sub(record, 1, FENCE) == ARGV[2 * i + 2] then
    letters[i], done[id], finished[#finished + 1] = 'a', true, id
    local born = unpack_struct('>I8', record, 2)
    if born >= now and born > floor then
      floor = born
    end
  else
    letters[i] = find({ id }, now, budget)[1] and 'l' or 'g'
  end
end
if #finished > 0 then
  zrems[leases], hdels[jobs], hdels[tries] = finished, finished, finished
  if informed > 0 then
    hdels[info] = finished
  end
  commit()
end
return table.concat(letters)
