-- Moves jobs of one lmstfy queue into a batch: ready ones, then those timer entries that the caller found.
-- KEYS: ready list, timer zset, zset of batches, list of the batch, list of dead letters
-- ARGV: name of the new batch, most ready jobs, bytes after which no further job is moved, prefix of body keys, then
--       timer entries
-- Returns {name of the batch, timer entries that were tried}. The name is that of one that was left behind if there is
-- one, else a new one; '' if there is nothing to hold. The list of a batch has five fields per job: due time in ms,
-- tries, id, time to live in ms (-1: for ever), body. As lmstfy does, a job whose body has expired is dropped, and a
-- timer entry without tries becomes a dead letter. An entry in another form goes to the list NAME OF THE ZSET:unreadable.
local left = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
if left then return {left, 0} end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local taken, bytes, tried, most = 0, 0, 0, tonumber(ARGV[3])
local function hold(due_ms, tries, id)
    local key = ARGV[4] .. id
    local body = redis.call('GET', key)
    taken = taken + 1
    if not body then return end
    redis.call('RPUSH', KEYS[4], string.format('%.0f', due_ms), tries, id, redis.call('PTTL', key), body)
    bytes = bytes + #body
end
local function set_aside(entry)
    taken = taken + 1
    redis.call('RPUSH', KEYS[3] .. ':unreadable', entry)
end
while taken < tonumber(ARGV[2]) and bytes < most do
    local entry = redis.call('RPOP', KEYS[1])
    if not entry then break end
    local is_read, tries, id = pcall(struct.unpack, 'HHc0', entry)
    if is_read then hold(now_ms, tries, id) else set_aside(entry) end
end
for n = 5, #ARGV do
    if bytes >= most then break end
    tried = tried + 1
    local score = redis.call('ZSCORE', KEYS[2], ARGV[n])
    if score then
        redis.call('ZREM', KEYS[2], ARGV[n])
        local is_read, _, _, tries, id = pcall(struct.unpack, 'Hc0Hc0HHc0', ARGV[n])
        if not is_read then
            set_aside(ARGV[n])
        elseif tries > 0 then
            hold(tonumber(score) * 1000, tries, id)
        elseif redis.call('PERSIST', ARGV[4] .. id) == 1 or redis.call('EXISTS', ARGV[4] .. id) == 1 then
            redis.call('LPUSH', KEYS[5], struct.pack('HHc0', 1, #id, id))
        end
    end
end
if taken == 0 then return {'', tried} end
redis.call('ZADD', KEYS[3], now_ms, ARGV[1])
return {ARGV[1], tried}
