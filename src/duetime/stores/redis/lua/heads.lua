-- When the first job of each queue is due.
-- KEYS: 1.. prefixes of queues in one partition
-- ARGV: none
-- Returns: per queue due_at, or false where nothing waits or the queue is paused
-- Touches: nothing

local answers = {}
for i = 1, #KEYS do
  local first = math.huge
  if redis.call('HGET', KEYS[i] .. ':meta', 'paused') ~= '1' then
    for priority = 1, 3 do
      local head = redis.call('ZRANGE', KEYS[i] .. ':wait:' .. priority, 0, 0, 'WITHSCORES')
      first = math.min(first, tonumber(head[2] or math.huge))
    end
  end
  answers[i] = first < math.huge and first
end
return answers
