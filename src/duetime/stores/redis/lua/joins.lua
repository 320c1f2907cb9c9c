-- How many finishes some joins have seen.
-- Modules: keys
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2.. names of joins
-- Returns: { place among the names, count, ms for which it goes on counting.. } of the joins that count
-- Touches: nothing

local now, answer = q.clock(ARGV[1]), {}
for i = 2, #ARGV do
  local kept = redis.pcall('GET', prefix .. ':join:' .. ARGV[i])
  if type(kept) == 'string' and #kept == 16 then
    local until_at, count = unpack_struct('>I8I8', kept)
    if until_at > now then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = i - 1, count, until_at - now
    end
  end
end
return answer
