-- Moves jobs of one php-delayqueue topic into a batch.
-- KEYS: bucket zset, ready list, hash of bodies, zset of batches, list of the batch
-- ARGV: name of the new batch, then members (topic:id) that the caller found in the bucket or the ready list
-- Returns the name of the batch: one that was left behind if there is one, else a new one; '' if there is nothing to
-- hold. The list of a batch has three fields per job: due time in ms, member, body ('' if it has none).
local left = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
if left then return left end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local jobs = 0
for n = 2, #ARGV do
    local member = ARGV[n]
    local score = redis.call('ZSCORE', KEYS[1], member)
    local due_ms = score and tonumber(score) * 1000 or now_ms
    -- Members of the ready list come in its order. LREM passes those of other topics, so the caller bounds their number.
    if redis.call('ZREM', KEYS[1], member) == 1 or redis.call('LREM', KEYS[2], 1, member) == 1 then
        local body = redis.call('HGET', KEYS[3], member) or ''
        redis.call('RPUSH', KEYS[5], string.format('%.0f', due_ms), member, body)
        jobs = jobs + 1
    end
end
if jobs == 0 then return '' end
redis.call('ZADD', KEYS[4], now_ms, ARGV[1])
return ARGV[1]
