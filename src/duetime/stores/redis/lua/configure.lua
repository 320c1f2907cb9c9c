-- Change a queue's rules, or only read them.
-- KEYS: 1 the queue's prefix
-- ARGV: 1 1 to change (which creates the queue), 0 to read · 2.. pairs of rule and number
-- Returns: { paused, strict, expired_to_dead, max_jobs, max_body }
-- Touches: meta agenda

begin()
local was_paused = paused
if ARGV[1] == '1' then
  begin_with_removal()
  for i = 2, #ARGV, 2 do
    call('HSET', meta, ARGV[i], ARGV[i + 1])
  end
  call('ZADD', agenda, 'LT', '+inf', queue)
  call('PERSIST', meta)
  survey()
end
if was_paused and not paused then
  first_due = earliest()
  announce(huge)
end
return { paused and 1 or 0, strict and 1 or 0, expired_to_dead and 1 or 0, max_jobs, max_body }
