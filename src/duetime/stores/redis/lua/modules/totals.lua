-- Module totals: what happened in the queue, day by day. Needs the module keys.

-- Days alternate with packed totals; a later one replaces an earlier one of the same day. There are few more days than
-- TOTAL_DAYS.
function q.all_totals()
  local days, state = call('HGETALL', q.totals), call('HGET', q.meta, 'state')
  if state and #state == COUNTED_STATE then
    days[#days + 1] = string.format('%d', (unpack_struct('>I4', state, 41)))
    days[#days + 1] = sub(state, 45)
  end
  return days
end

-- Sets when the totals of a queue expire that was forgotten because it was idle: soon if it was for one answer.
function q.age_totals()
  local accepted, days = 0, q.all_totals()
  for i = 2, #days, 2 do
    accepted = accepted + (#days[i] == #NO_TOTALS and unpack_struct('>I6', days[i]) or 0)
  end
  call('PEXPIRE', q.totals, q.text((accepted > 1 and TOTAL_DAYS or 1) * DAY))
end
