-- Read jobs by id.
-- Modules: keys header queue
-- KEYS: 1 the queue's prefix · 2 its partition's agenda
-- ARGV: 1 now or '' · 2 bytes of values to read · 3.. ids
-- Returns: { now, entry.. }, an entry per id: { header + body, record or false, due_at or lease end or time of death,
--   info or false }, or false where there is none that can be read; fewer entries than ids when the bytes were read
-- Touches: nothing

local now, room = q.clock(ARGV[1]), tonumber(ARGV[2])
q.begin()
local answers = { now }
for i = 3, #ARGV do
  local id = ARGV[i]
  local raw, record = call('HGET', q.jobs, id), call('HGET', q.tries, id)
  answers[i - 1] = false
  if raw then
    local state = WAITING
    local _, expires, _, priority = q.read_header(raw)
    if priority and q.is_record(record) then
      state, _, _, _, _, priority, _, expires = unpack_struct(RECORD, record)
    elseif record then
      priority = nil
    end
    local place = state == WAITING and q.wait[priority] or state == LEASED and q.leases or q.dead
    local at = priority and call('ZSCORE', place, id)
    if at and (state ~= WAITING or expires == 0 or expires >= now) then
      local note = q.informed > 0 and call('HGET', q.info, id)
      answers[i - 1] = { raw, record, at, note }
      room = room - #raw - (note and #note or 0)
      if room <= 0 then
        break
      end
    end
  end
end
return answers
