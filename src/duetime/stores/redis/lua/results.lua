-- The results that are kept of jobs.
-- Modules: keys
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of results to read · 3.. ids
-- Returns: { a value per id.. }: kept_until I8, born I8, result; false where there is none. It ends early at its bound
-- Touches: nothing

local now, room, answer = q.clock(ARGV[1]), tonumber(ARGV[2]), {}
for i = 3, #ARGV do
  local kept = call('GET', prefix .. ':result:' .. ARGV[i])
  if kept and (#kept < 16 or unpack_struct('>I8', kept) <= now) then
    kept = false
  end
  room = room - (kept and #kept - 16 or 0)
  if room < 0 and #answer > 0 then
    break
  end
  answer[#answer + 1] = kept
end
return answer
