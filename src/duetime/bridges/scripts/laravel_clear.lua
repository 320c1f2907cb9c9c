-- Deletes all jobs of a Laravel queue. The memory is freed in the background.
-- KEYS: ready list, notify list, delayed zset, reserved zset
-- Returns how many jobs there were.
local jobs = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[3]) + redis.call('ZCARD', KEYS[4])
redis.call('UNLINK', unpack(KEYS))
return jobs
