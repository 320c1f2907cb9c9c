-- Module keys: the queue's keys, the clock, and the forms in which jobs are stored. A script names the modules that it
-- needs in the second part of its header; the loader puts their texts in front of it, in that order. Everything that a
-- module offers is in the table `q`. Redis creates the functions anew in every run, so short scripts name few modules.
--
-- The key map (P is KEYS[1], `dt:{NN}:namespace/queue`; one hash tag, so one slot):
--   P:jobs      hash  id -> header + body
--   P:wait:1-3  zset  id by due_at; ready and delayed alike; only the clock distinguishes them
--   P:leases    zset  id by lease end
--   P:dead      zset  id by time of death
--   P:tries     hash  id -> delivery record, once a job was delivered or is dead; the header then no longer counts
--   P:ttl       zset  id by expires_at, for jobs with a ttl that wait and were due when the last sweep ran
--   P:info      hash  id -> last error (with its length before it) and attributes, for jobs that have either
--   P:meta      hash  rules, state (see RULES and STATE), expired (a total), sweeping (where an unfinished sweep is)
--   P:totals    hash  day (UTC, from the epoch on) -> what happened (see TOTALS), without the day that the state holds;
--                     day 0 is the sum of the days that are no longer kept one by one. Outlives a queue that was
--                     forgotten, for a while
--   P:mark:*    string  what a marked push answered
--   P:join:*    string  until I8 and how many finishes a join has seen, I8; the rest of the key is its name
--   P:result:*  string  kept_until I8, born I8 and the result of a finished job; the rest of the key is its id
--   P:repaired  hash  id -> the marks of its repairs (see put_back.lua); lives for as long as the latest of the marks
--   P:damaged   hash  id -> what was found of a job that cannot be read, set aside for a person to read
--   KEYS[2]     zset  `dt:{NN}:queues`: queue by a lower bound of its next lease end or expiry; the registry of
--                     queues and the reaper's agenda in one
--   dt:{NN}:floor  string  the highest floor of a queue of this partition that was forgotten; new ones begin with it
--
-- The sweep keeps delayed jobs out of P:ttl. Every waiting job with a ttl and due_at <= swept is in P:ttl
-- (once `sweeping` is absent); each later one has expires_at - due_at >= slack, so none of them can have expired
-- before its due_at + slack. A queue without short ttls therefore sweeps almost nothing.
--
-- A script reads and validates first: begin() touches each key with a command of its type, so that foreign data
-- ends the script with WRONGTYPE before anything is written. commit() then removes before it adds: Redis refuses
-- a script over maxmemory at its first write that needs room, and lets one go on that has begun by giving room back.
--
-- P itself is never a key, and every script names two keys. So while a slot moves to another node of a Cluster, Redis
-- answers TRYAGAIN, and does not run a script where only some of the queue's keys are.
--
-- Functions hang in `q` and not in locals for speed: making a closure costs more the more locals it holds on to.

local call, pack, unpack_struct = redis.call, struct.pack, struct.unpack
local byte, sub, huge = string.byte, string.sub, math.huge

-- A delivery record: state, born, attempt, used, tries, priority, due_at, expires_at. Its first 13 bytes are the fence.
local RECORD = '>BI8I4I4I2BI8I8'
local RECORD_LENGTH = 36
local WAITING, LEASED, DEAD_TRIES, DEAD_KILLED, DEAD_EXPIRED = 0, 1, 2, 3, 4

-- What happened: event, reason, born, attempt, due_at, was. Codes are positions in codec.py's EVENTS and REASONS.
local MOVED = '>BBI8I4I8I8'
local ACCEPTED, KEPT, REPLACED, GIVEN_BACK, ACKED, RELEASED, LEASE_EXPIRED = 0, 1, 2, 4, 5, 6, 7
local DEAD, CANCELLED, RESCHEDULED, EXPIRED, DELETED, RESPAWNED = 8, 9, 10, 11, 13, 14
local NO_REASON, BY_TRIES, BY_EXPIRY, IS_WAITING, IS_LEASED, IS_DEAD, IS_RUNNING, UNFENCED = 0, 1, 3, 4, 5, 6, 7, 8

-- A header: flags, born, ttl, tries. Flags: priority 2 bits, form of the ttl 2 bits, code of the tries 3 bits, long
-- born 1 bit.
local TTL_SECONDS, TTL_MINUTES, TTL_ABSOLUTE = 1, 2, 3
local TRIES_BY_CODE, TRIES_FOLLOW = { [0] = 5, 1, 0, 2, 3, 10, 25 }, 7
local EPOCH = 1577836800000 -- 2020-01-01: five bytes of milliseconds last until 2054
local LONGEST_HEADER = 17

-- What P:meta keeps of the rules: 1 paused + 2 strict + 4 expired_to_dead + 8 kept + 16 offline, max_jobs, max_body;
-- and of the running state: floor, the latest born or end of the last job, swept, slack, the largest value that P:jobs
-- ever had; and then, once something has happened, the day of the last event (I4) and its totals, so that counting
-- costs no command of its own.
local RULES, STATE = '>BI8I8', '>I8I8I8I8I8'
local NO_SLACK = 2 ^ 52

local IDLE = 600000 -- IDLE_MS of stores/base.py: an empty queue is forgotten when it has not been used for this long

-- What happened on a day, in the order of job.Totals, and the place of each number.
local TOTALS, NO_TOTALS = '>I6I6I6I6I6I6I6I6I6', string.rep('\0', 54)
local N_ACCEPTED, N_DELIVERED, N_ACKED, N_RELEASED, N_LAPSED = 1, 2, 3, 4, 5
local N_DEAD, N_CANCELLED, N_EXPIRED, N_RESPAWNED = 6, 7, 8, 9
local DAY, TOTAL_DAYS = 86400000, 31
local COUNTED_STATE = 98 -- bytes of a state with totals, which begin at its 45th

local CHUNK = 4000 -- arguments that one unpack() can take; even, so that pairs stay together

-- A small key is a list that Redis searches from end to end, which makes many additions slow. A member of this length
-- makes it a table immediately. No id can be it, as ids are printable, and it is gone before the script ends.
local LONG, MANY = string.rep('\0', 80), 64

local prefix = KEYS[1]
local q = {
  jobs = prefix .. ':jobs',
  tries = prefix .. ':tries',
  info = prefix .. ':info',
  meta = prefix .. ':meta',
  leases = prefix .. ':leases',
  dead = prefix .. ':dead',
  ttl = prefix .. ':ttl',
  damaged = prefix .. ':damaged',
  totals = prefix .. ':totals',
  repaired = prefix .. ':repaired',
  wait = { prefix .. ':wait:1', prefix .. ':wait:2', prefix .. ':wait:3' },
  agenda = KEYS[2],
  floors = sub(KEYS[2], 1, 7) .. ':floor',
  name = sub(prefix, 9),
  shapes = {}, -- forms of headers, by their flags
  options = {}, -- options of jobs, by their packed form
  first_due = huge, -- the earliest due_at that the script planned
  now = 0,
}

-- The given instant, or this server's.
function q.clock(given)
  if given ~= '' then
    q.now = tonumber(given)
  else
    local time = call('TIME')
    q.now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return q.now
end

-- An instant as Redis reads it; Lua's own way loses digits.
function q.text(instant)
  return string.format('%.0f', instant)
end
