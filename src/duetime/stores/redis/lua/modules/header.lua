-- Module header: reading the headers of bodies, and delivery records. Needs the module keys.

-- How a header with these flags is read: form for struct, what born counts from, unit of the ttl, tries, priority, and
-- its length.
function q.shape_of(flags)
  local form, code = math.floor(flags / 4) % 4, math.floor(flags / 16) % 8
  local shape = { '>' .. (flags < 128 and 'I5' or 'I8'), flags < 128 and EPOCH or 0, 0, TRIES_BY_CODE[code], flags % 4 }
  if form == TTL_SECONDS or form == TTL_MINUTES then
    shape[1], shape[3] = shape[1] .. 'I2', form == TTL_SECONDS and 1000 or 60000
  elseif form == TTL_ABSOLUTE then
    shape[1], shape[3] = shape[1] .. 'I6', huge
  end
  if code == TRIES_FOLLOW then
    shape[1] = shape[1] .. 'I2'
  end
  shape[6] = shape[5] > 0 and 1 + struct.size(shape[1]) or huge
  q.shapes[flags] = shape
  return shape
end

-- Reads a header: born, expires_at, tries, priority, and where the body begins. Nothing if Duetime did not write it.
function q.read_header(raw)
  local flags = byte(raw) or 0
  local shape = q.shapes[flags] or q.shape_of(flags)
  if #raw < shape[6] then
    return nil
  end
  local unit, allowed = shape[3], shape[4]
  local born, one, two, three = unpack_struct(shape[1], raw, 2)
  born = born + shape[2]
  if unit == 0 then
    if allowed then
      return born, 0, allowed, shape[5], one
    end
    return born, 0, one, shape[5], two
  end
  local expires = unit == huge and one or born + one * unit
  if allowed then
    return born, expires, allowed, shape[5], two
  end
  return born, expires, two, shape[5], three
end

-- True for a delivery record that Duetime wrote.
function q.is_record(record)
  return record and #record == RECORD_LENGTH and byte(record) <= DEAD_EXPIRED
end

-- What reserve_one and next_one answer, for a queue with jobs of normal priority only: { now, next_at or false, id,
-- record of the lease, header + body } for the first ready job, { now, next_at or false } if none is ready, nil if that
-- job needs all of reserve. Changes nothing.
function q.first_delivery(now)
  local first = call('ZRANGE', q.wait[2], 0, 1, 'WITHSCORES')
  local id, due, next_at = first[1], tonumber(first[2]), tonumber(first[4]) or false
  if not id or due > now then
    return { now, due or false }
  end
  local raw, record = call('HGET', q.jobs, id), call('HGET', q.tries, id)
  local born, expires, allowed, priority = q.read_header(raw or '')
  local attempt, used, _ = 0, 0, nil
  if born and record then
    if #record ~= RECORD_LENGTH or byte(record) ~= WAITING then
      return nil
    end
    _, born, attempt, used, allowed, priority, _, expires = unpack_struct(RECORD, record)
  end
  if not born or expires > 0 and expires < now then
    return nil
  end
  return { now, next_at, id, pack(RECORD, LEASED, born, attempt + 1, used + 1, allowed, priority, due, expires), raw }
end
