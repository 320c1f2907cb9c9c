-- Module endings: how leases and jobs end. Needs the modules keys, header and queue.

-- Plans a death; the job must be out of its place. `job` is { born, attempt, used, tries, priority, due_at }.
function q.die(id, job, now, state)
  q.zadd(q.dead, now, id)
  q.hset(q.tries, id, pack(RECORD, state, job[1], job[2], job[3], job[4], job[5], job[6], 0))
  q.count(N_DEAD)
  return pack(MOVED, DEAD, state - DEAD_TRIES + BY_TRIES, job[1], job[2], 0, 0)
end

-- Plans the end of a job by its ttl; the job must be out of its place.
function q.expire(id, job, now)
  q.expired = q.expired + 1
  if q.expired_to_dead then
    return q.die(id, job, now, DEAD_EXPIRED)
  end
  q.forget(id, job[1])
  q.count(N_EXPIRED)
  return pack(MOVED, EXPIRED, NO_REASON, job[1], job[2], 0, 0)
end

-- Plans what becomes of a lease that ended: the job waits again from `due` on, or ends.
function q.end_lease(id, job, expires, now, due, event)
  q.zrem(q.leases, id)
  if event ~= GIVEN_BACK and job[4] > 0 and job[3] >= job[4] then
    return q.die(id, job, now, DEAD_TRIES)
  end
  if expires > 0 and math.max(now, due) > expires then
    return q.expire(id, job, now)
  end
  q.hset(q.tries, id, pack(RECORD, WAITING, job[1], job[2], job[3], job[4], job[5], due, expires))
  q.add_waiting(id, job[5], due, expires)
  if event ~= GIVEN_BACK then
    q.count(event == RELEASED and N_RELEASED or N_LAPSED)
  end
  return pack(MOVED, event, NO_REASON, job[1], job[2], due, 0)
end

-- A lease that is held: its job as end_lease() takes it, and expires_at. Nothing if the fence does not fit.
function q.held_lease(id, fence)
  local record = call('HGET', q.tries, id)
  if not q.is_record(record) or sub(record, 1, #fence) ~= fence then
    return nil
  end
  local _, born, attempt, used, allowed, priority, due, expires = unpack_struct(RECORD, record)
  return { born, attempt, used, allowed, priority, due }, expires
end

-- Plans a new last error for a job; attributes stay. An empty error clears it.
function q.set_error(id, text)
  local before = call('HGET', q.info, id)
  local attributes = before and sub(before, 3 + unpack_struct('>I2', before)) or ''
  if text ~= '' or attributes ~= '' then
    q.hset(q.info, id, pack('>I2', #text) .. text .. attributes)
  elseif before then
    q.hdel(q.info, id)
  end
end
