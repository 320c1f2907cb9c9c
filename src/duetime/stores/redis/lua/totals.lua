-- What has happened in a queue, day by day.
-- Modules: keys totals
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or ''
-- Returns: { now, { day, packed totals.. } }
-- Touches: nothing

return { q.clock(ARGV[1]), q.all_totals() }
