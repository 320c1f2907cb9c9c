-- Module find: jobs by id, and setting aside those that cannot be read. Needs the modules keys, header and queue.

-- Plans to move a job that cannot be read to P:damaged. The caller removes it from its place. `answer` gets its id, and
-- '' in place of a Moved.
function q.set_aside(id, raw, record, answer)
  q.hset(q.damaged, id, (raw or '') .. (record or ''))
  q.damaged_count = q.damaged_count + 1
  q.zrem(q.ttl, id)
  q.hdel(q.jobs, id)
  q.hdel(q.tries, id)
  q.hdel(q.info, id)
  answer[#answer + 1] = id
  answer[#answer + 1] = ''
end

-- Headers of jobs (each at the front of its value), false where there is none. Reads at most `budget` bytes of
-- values, but at least one; what was not reached is missing from the end.
function q.heads_of(ids, budget)
  if #ids * q.largest <= budget then
    return q.fetch(q.jobs, ids)
  end
  local heads, bytes = {}, 0
  for i = 1, #ids do
    if bytes > budget then
      break
    end
    local raw = call('HGET', q.jobs, ids[i])
    bytes = bytes + (raw and #raw or 0)
    heads[i] = raw and sub(raw, 1, LONGEST_HEADER)
  end
  return heads
end

-- Jobs by id: { state, born, attempt, used, tries, priority, due_at, expires_at }, false where there is none, it
-- expired or cannot be read. While a job waits its due_at is not here but in the wait set. Bounded as heads_of.
function q.find(ids, now, budget)
  local records, found, bare, at = q.fetch(q.tries, ids), {}, {}, {}
  for i = 1, #ids do
    if records[i] then
      found[i] = q.is_record(records[i]) and { unpack_struct(RECORD, records[i]) }
    else
      bare[#bare + 1] = ids[i]
      at[#at + 1] = i
    end
  end
  local heads, reached = q.heads_of(bare, budget), #ids
  for i = 1, #bare do
    local head = heads[i]
    if head == nil then
      reached = at[i] - 1
      break
    end
    found[at[i]] = false
    if head then
      local born, expires, allowed, priority = q.read_header(head)
      found[at[i]] = born and { WAITING, born, 0, 0, allowed, priority, nil, expires } or false
    end
  end
  for i = 1, reached do
    local job = found[i]
    if job and job[1] == WAITING and job[8] > 0 and job[8] < now then
      found[i] = false
    end
  end
  return found, reached
end
