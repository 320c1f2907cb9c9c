-- Moves jobs of one php-delayqueue topic into a batch. Begins with hold.lua.
-- KEYS: bucket zset, ready list, hash of bodies
-- ARGV from 3: members (topic:id) that the caller found in the bucket or the ready list
-- The list of a batch has three fields per job: due time in ms, member, body ('' if it has none).
for n = 3, #ARGV do
    local member = ARGV[n]
    local score = redis.call('ZSCORE', KEYS[1], member)
    -- Members of the ready list come in its order. LREM passes those of other topics, so the caller bounds their number.
    if redis.call('ZREM', KEYS[1], member) == 1 or redis.call('LREM', KEYS[2], 1, member) == 1 then
        add(score and tonumber(score) * 1000 or now_ms, member, redis.call('HGET', KEYS[3], member) or '')
    end
end
return answer(0)
