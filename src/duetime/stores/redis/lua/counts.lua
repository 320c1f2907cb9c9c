-- Count the jobs of a queue, each in its state.
-- Modules: keys header queue find sweep
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 jobs to sweep at most · 3 bytes of values to read at most
-- Returns: { now, delayed, ready, leased, dead, expired, damaged } at one instant; { now } when the sweep has not
--   caught up and expired jobs are not all known: call again
-- Touches: ttl meta

local now = q.clock(ARGV[1])
q.begin()
local caught_up = q.sweep(now, tonumber(ARGV[2]), tonumber(ARGV[3]))
q.commit()
if not caught_up then
  return { now }
end
local text, due, waiting = q.text(now), 0, 0
for priority = 1, 3 do
  due = due + call('ZCOUNT', q.wait[priority], '-inf', text)
  waiting = waiting + call('ZCARD', q.wait[priority])
end
local gone, total = call('ZCOUNT', q.ttl, '-inf', '(' .. text), tonumber(call('HGET', q.meta, 'expired') or 0)
local buried = call('ZCARD', q.dead) + (q.expired_to_dead and gone or 0)
return { now, waiting - due, due - gone, call('ZCARD', q.leases), buried, total + gone, q.damaged_count }
