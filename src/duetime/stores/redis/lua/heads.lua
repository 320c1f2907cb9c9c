-- When the first job of each queue is due.
-- Modules: keys queue
-- KEYS: 1.. prefixes of queues in one partition · last their agenda
-- ARGV: none
-- Returns: per queue due_at, or false where nothing waits or the queue is paused
-- Touches: nothing

local answers = {}
for i = 1, #KEYS - 1 do
  local first = huge
  q.read_rules(call('HGET', KEYS[i] .. ':meta', 'rules'))
  if not q.paused then
    for priority = 1, 3 do
      local due = call('ZRANGE', KEYS[i] .. ':wait:' .. priority, 0, 0, 'WITHSCORES')[2]
      first = math.min(first, tonumber(due or huge))
    end
  end
  answers[i] = first < huge and first
end
return answers
