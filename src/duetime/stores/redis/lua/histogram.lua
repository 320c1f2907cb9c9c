-- How many jobs wait before each edge.
-- Modules: keys
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1.. edges
-- Returns: per edge the number of jobs with due_at < edge
-- Touches: nothing

local answers = {}
for i = 1, #ARGV do
  answers[i] = 0
  for priority = 1, 3 do
    answers[i] = answers[i] + call('ZCOUNT', q.wait[priority], '-inf', '(' .. ARGV[i])
  end
end
return answers
