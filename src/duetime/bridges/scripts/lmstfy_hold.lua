-- Moves jobs of one lmstfy queue into a batch: ready ones, then those timer entries that the caller found. Begins with
-- hold.lua.
-- KEYS: ready list, timer zset, list of dead letters
-- ARGV from 3: most ready jobs, bytes after which no further job is moved, prefix of body keys, then timer entries
-- Says how many timer entries were tried. The list of a batch has five fields per job: due time in ms, tries, id, time
-- to live in ms (-1: for ever), body. As lmstfy does, a job whose body has expired is dropped, and a timer entry without
-- tries becomes a dead letter. An entry in another form goes to the list NAME OF THE ZSET:unreadable. The batch may have
-- no jobs then.
local bytes, tried, most = 0, 0, tonumber(ARGV[4])
local function hold(due_ms, tries, id)
    local key = ARGV[5] .. id
    local body = redis.call('GET', key)
    if body then
        add(due_ms, tries, id, redis.call('PTTL', key), body)
        bytes = bytes + #body
    else
        jobs = jobs + 1 -- the caller asks again
    end
end
local function set_aside(entry)
    redis.call('RPUSH', batches .. ':unreadable', entry)
    jobs = jobs + 1
end
while jobs < tonumber(ARGV[3]) and bytes < most do
    local entry = redis.call('RPOP', KEYS[1])
    if not entry then break end
    local is_read, tries, id = pcall(struct.unpack, 'HHc0', entry)
    if is_read then hold(now_ms, tries, id) else set_aside(entry) end
end
for n = 6, #ARGV do
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
        elseif redis.call('PERSIST', ARGV[5] .. id) == 1 or redis.call('EXISTS', ARGV[5] .. id) == 1 then
            redis.call('LPUSH', KEYS[3], struct.pack('HHc0', 1, #id, id))
        end
    end
end
return answer(tried)
