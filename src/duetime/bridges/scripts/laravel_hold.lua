-- Moves jobs out of a Laravel queue into a batch of their own: ready ones first, then delayed ones by their due time.
-- KEYS: ready list, delayed zset, notify list, zset of batches, list of the batch
-- ARGV: name of the new batch, most jobs
-- Returns the name of the batch: one that was left behind if there is one, else a new one; '' if there is nothing to
-- hold. The list of a batch has pairs of (due time in ms, payload).
local left = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
if left then return left end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local held = {}
for _ = 1, tonumber(ARGV[2]) do
    local text = redis.call('LPOP', KEYS[1])
    if not text then break end
    redis.call('LPOP', KEYS[3])
    held[#held + 1] = string.format('%.0f', now_ms)
    held[#held + 1] = text
end
local room = tonumber(ARGV[2]) - #held / 2
if room > 0 then
    local due = redis.call('ZRANGE', KEYS[2], 0, room - 1, 'WITHSCORES')
    for n = 1, #due, 2 do
        redis.call('ZREM', KEYS[2], due[n])
        held[#held + 1] = string.format('%.0f', tonumber(due[n + 1]) * 1000)
        held[#held + 1] = due[n]
    end
end
if #held == 0 then return '' end
redis.call('ZADD', KEYS[4], now_ms, ARGV[1])
for first = 1, #held, 500 do
    redis.call('RPUSH', KEYS[5], unpack(held, first, math.min(first + 499, #held)))
end
return ARGV[1]
