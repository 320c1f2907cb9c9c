-- Module sweep: order of ids, and which waiting jobs can expire. Needs the modules keys, header, queue and find.

-- Order of ids. Lua's own < follows the server's locale.
function q.is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first member of a zset after (score, id), whether or not that is still there.
function q.rank_after(key, score, id)
  local low, high = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if q.is_before(id, call('ZRANGE', key, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- One bounded step of bringing jobs that fell due into P:ttl. True when the sweep has caught up with `now`.
-- `sweeping` is "priority:from:score:id": jobs due after `from` and up to `swept`; score and id are where it is.
function q.sweep(now, limit, budget)
  local target = now - q.slack - 1
  if not q.sweeping then
    if target <= q.swept then
      return true
    end
    q.sweeping = '1:' .. q.text(q.swept) .. '::'
    q.swept = target
  end
  while q.sweeping and limit > 0 do
    local place, from, score, id = string.match(q.sweeping, '^(%d):(%d+):(%d*):(.*)$')
    local key = q.wait[tonumber(place)]
    local first = score == '' and call('ZCOUNT', key, '-inf', from) or q.rank_after(key, score, id)
    local last = call('ZCOUNT', key, '-inf', q.text(q.swept)) - 1
    local ids, scores = {}, {}
    if first <= last then
      local range = call('ZRANGE', key, first, math.min(last, first + limit - 1), 'WITHSCORES')
      for i = 1, #range, 2 do
        ids[#ids + 1], scores[#scores + 1] = range[i], range[i + 1]
      end
    end
    local found, reached = q.find(ids, 0, budget)
    for i = 1, reached do
      if found[i] and found[i][8] > 0 then
        q.zadd(q.ttl, found[i][8], ids[i])
      end
    end
    limit = limit - reached
    if first + reached - 1 < last then
      q.sweeping = place .. ':' .. from .. ':' .. scores[reached] .. ':' .. ids[reached]
      limit = 0
    else
      q.sweeping = place ~= '3' and (place + 1) .. ':' .. from .. '::'
    end
  end
  q.hdel(q.meta, 'sweeping')
  if q.sweeping then
    q.hset(q.meta, 'sweeping', q.sweeping)
  end
  return not q.sweeping and target <= q.swept
end
