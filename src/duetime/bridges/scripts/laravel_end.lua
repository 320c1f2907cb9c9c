-- Ends or changes a reservation, if it is still held.
-- KEYS: reserved zset, zset or list to put the payload into (the reserved zset itself to extend)
-- ARGV: reserved text, 'delete' | 'zadd' | 'push', seconds from now for 'zadd', text to put there
-- Returns 1, or 0 if the reservation was lost: then nothing changed.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] == 'zadd' then
    local now = redis.call('TIME')
    local at = tonumber(now[1]) + tonumber(now[2]) / 1000000 + tonumber(ARGV[3])
    redis.call('ZADD', KEYS[2], math.ceil(at), ARGV[4])
elseif ARGV[2] == 'push' then
    redis.call('RPUSH', KEYS[2], ARGV[4])
end
return 1
