-- Change a queue's rules, or only read them.
-- Modules: keys queue
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 '1' to change, which creates the queue, '0' to read · 2 paused · 3 strict · 4 expired_to_dead · 5 max_jobs ·
--   6 max_body · 7 kept · 8 offline: numbers, or '' for what stays as it is
-- Returns: { paused, strict, expired_to_dead, max_jobs, max_body, kept, offline }
-- Touches: meta agenda totals

q.begin()
local was_paused = q.paused
local rules = { q.paused and 1 or 0, q.strict and 1 or 0, q.expired_to_dead and 1 or 0, q.max_jobs, q.max_body,
  q.kept and 1 or 0, q.offline and 1 or 0 }
if ARGV[1] == '1' then
  for i = 1, 7 do
    rules[i] = tonumber(ARGV[i + 1]) or rules[i]
  end
  q.begin_with_removal()
  local flags = rules[1] + 2 * rules[2] + 4 * rules[3] + 8 * rules[6] + 16 * rules[7]
  call('HSET', q.meta, 'rules', pack(RULES, flags, rules[4], rules[5]))
  q.read_rules(call('HGET', q.meta, 'rules'))
  call('ZADD', q.agenda, 'LT', q.is_idle() and q.text(q.latest + IDLE) or '+inf', q.name)
  call('PERSIST', q.meta)
  call('PERSIST', q.totals)
end
if was_paused and rules[1] == 0 then
  q.paused, q.first_due = false, q.earliest()
  q.wake(huge)
end
return rules
