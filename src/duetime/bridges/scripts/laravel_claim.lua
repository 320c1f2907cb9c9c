-- Reserves payloads that the caller read from the head of the ready list. One that is not there any more was reserved
-- by somebody else.
-- KEYS: ready list, reserved zset, notify list, poison list
-- ARGV: seconds of the reservation, then for each payload: its text, and its text with the next attempt ('' if it
--       cannot be reserved: it goes to the poison list)
-- Returns for each payload 1 if it was reserved, 0 if not.
-- A payload is looked for among the first 200: the callers compete for the head only.
local now = redis.call('TIME')
local until_s = tonumber(now[1]) + tonumber(ARGV[1])
if tonumber(now[2]) > 0 then until_s = until_s + 1 end
local claimed = {}
for n = 2, #ARGV, 2 do
    local done = 0
    if redis.call('LPOS', KEYS[1], ARGV[n], 'MAXLEN', 200) then
        redis.call('LREM', KEYS[1], 1, ARGV[n])
        redis.call('LPOP', KEYS[3])
        if ARGV[n + 1] == '' then
            redis.call('RPUSH', KEYS[4], ARGV[n])
        else
            redis.call('ZADD', KEYS[2], until_s, ARGV[n + 1])
            done = 1
        end
    end
    claimed[#claimed + 1] = done
end
return claimed
