-- The beginning of every script that moves jobs of a queue into a new batch. If a batch was left behind, it answers that
-- batch and ends.
-- KEYS: those of the script, then zset of batches, list of the new batch
-- ARGV: name of the new batch, milliseconds after which a closed batch is free, then those of the script
-- Returns {name of the batch or '', what else the script says}.
-- The score of a batch is when it was held, while only one relay has held it; 0 if several have; or, negative, when it
-- was closed (forget.lua). A closed batch is held by nobody until every push of it that was under way has ended.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local batches, list, name = KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[1]
local left = redis.call('ZRANGEBYSCORE', batches, tonumber(ARGV[2]) - now_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if left[1] then
    redis.call('ZADD', batches, tonumber(left[2]) < 0 and now_ms or 0, left[1])
    return {left[1], 0}
end
local jobs = 0
local function add(due_ms, ...)
    redis.call('RPUSH', list, string.format('%.0f', tonumber(due_ms)), ...)
    jobs = jobs + 1
end
local function answer(said)
    if jobs == 0 then return {'', said} end
    redis.call('ZADD', batches, now_ms, name)
    return {name, said}
end
