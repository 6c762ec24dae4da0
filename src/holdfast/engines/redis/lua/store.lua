-- What is put in front of every script: the keys, the door, and what most acts need. What only some need is in parts of its
-- own (scripts.py says which), because every function that is made costs a call a little.
--
-- All keys of a store begin with one hash tag, KEYS[1] = "{app}", so that they live on one node of a cluster. Names:
--
--   store          HASH  id (random, made with the store), format, oldest, seq (counts writing acts), gen (counts the
--                        servers that this store has lived on), run (the server it lives on), bN (seq when generation N
--                        began), n (counts jobs), place (counts step records),
--                        shift (of a test's clock, in milliseconds), moved (the record `moved`, while it is there)
--   j:ID           HASH  one job: h its head (below), b its body (arguments and what else never changes, opaque here),
--                        r result, x error, iV the signal of version V, eV the history entry of version V (opaque),
--                        u the limits that it uses, if any (limits.lua), q its unique name, if any, as in k:,
--                        f its fair key, if it has one (fair.lua)
--   i:STATE        ZSET  the ids of the jobs in this state, all at score 0: ordered by id
--   o, o:N         ZSET, LIST   all jobs in the order of their numbers: which lists there are; the ids of each BUCKET numbers
--   q:N:QUEUE:TYPE ZSET  what can be claimed now of one type, all at score 0: rank, run_at, number, id as one text, so the
--                        first is next (N is the length of the queue's name)
--   y:QUEUE        SET   the types of which a queue has something to claim
--   r:QUEUE        ZSET  what can be claimed now of all types together: processes of format 1 write it, and claim deals it out
--   t:QUEUE        ZSET  what waits for a time, by run_at: scheduled, retryable, pending, and available ones after losses
--   x, xi          ZSET, ZSET   what can expire, by expires_at; what of it was found to have expired, all at score 0
--   p              ZSET  what has ended and leaves, by prune_at: number and id
--   b:ID           SET   ended jobs that stay because this one, their parent, has not ended
--   u              LIST  parents that have ended and whose b:ID is to be looked at again
--   s:ID, f:ID     HASH, SET   the step records of a job: path → state, place, record (opaque); the paths that failed
--   m:ID           HASH  how many steps of a job: state and name as one text → number; NAME with an = in front has counters
--                        of its own; = how many names have. Names are as their records have them, in JSON
--   l:ID           ZSET  the records of a job, all at score 0: place and path of a step, and the paths of our own, behind those
--   c:ID           ZSET  the ids of a job's children, all at score 0
--   g:ID           HASH  of a job's children: gGROUP how many have not arrived, l how many have not ended
--   k:N:TYPE:KEY   STRING  what an idempotency key stands for: job, digest, until (N is the length of the type); of a
--                        unique name, with the type ~unique: job, stamp, until
--   ku             ZSET  all keys, by their end; without one, at +inf
--   h:WORKER       HASH  the jobs that a worker holds: id → epoch
--   w              HASH  worker → its last beat: time, connection, generation, presence (opaque)
--   c              HASH  how many jobs: STATE and queue as one text → number
--   d, dv, dn      HASH, HASH, ZSET   records: name → version, time, value; name → version ever reached; names, ordered;
--                        the version ever reached of a removed one has the time of that behind it
--   l?:…                 shared limits: see limits.lua
--   fq:…, fy:…, ft       fair keys: see fair.lua
--   n:TOPIC              no key: the channel of a topic's notifications; n:* reaches every process
--
-- A head is an array: state, version, epoch, queue, number, rank, run_at, attempt, recoveries, worker, claimed_at,
-- finished_at, prune_at, arrived, parent, group, expires_at, waits, type, key, inbox, first, more. Nothing is `false`.
-- more: 1 there is a result, 2 there is an error, and 4 for each version: m:ID and l:ID are right while these are as many as the
-- job has versions. Processes of format 2 count versions only, and set these back.
-- Numbers beyond 2^53 come as texts and are never counted with. rank and run_at are texts that sort as the numbers do.
-- States are letters: s(cheduled) a(vailable) p(ending) o(wned: active) r(etryable) v (review) c(ompleted) d(iscarded)
-- k (cancelled).
--
-- ARGV begins with the store's id, generation and seq as the caller knows them, and the word for telling news.

if redis.replicate_commands then redis.replicate_commands() end -- Redis 6.2: we ask for the time before we write
local call, pack, unpack_, sub, format = redis.call, cmsgpack.pack, cmsgpack.unpack, string.sub, string.format
local K = KEYS[1] .. ':'
local STORE = K .. 'store'
local FIRST_ARG = 5

-- The door: a store that was emptied, replaced or went back is not the one that the caller means.
local door = call('HMGET', STORE, 'id', 'gen', 'seq', 'shift', 'moved')
if door[1] ~= ARGV[1] or door[2] ~= ARGV[2] or tonumber(door[3]) < tonumber(ARGV[3]) then
  return {'lost', door[1], door[2], door[3]}
end
local seq = tonumber(door[3])
local moved = door[5] and {'moved', door[5]} -- what every act that writes answers while the jobs go elsewhere

local STATE, VERSION, EPOCH, QUEUE, NUMBER, RANK, RUN, ATTEMPT, RECOVERIES, WORKER, CLAIMED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local FINISHED, PRUNE, ARRIVED, PARENT, GROUP, EXPIRES, WAITS, TYPE, KEY, INBOX, FIRST, MORE = 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23
local HAS_RESULT, HAS_ERROR, EACH_VERSION = 1, 2, 4
local DUE = {s = true, r = true, p = true}
local ENDED = {c = true, d = true, k = true}

local function count_act() seq = call('HINCRBY', STORE, 'seq', 1) end

local function time_now()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + (door[4] or 0)
end

local function moment_of(at) return '1' .. format('%016x', at) end

local function number_of(moment)
  if sub(moment, 1, 1) == '0' then return -1 end
  return tonumber(sub(moment, 2), 16)
end

-- What runs or has ended can't expire any more.
local function keep(ids)
  call('ZREM', K .. 'x', unpack(ids))
  call('ZREM', K .. 'xi', unpack(ids))
end

local function expired(head, now) return head[EXPIRES] and tonumber(head[EXPIRES]) <= now end

local function job_key(id) return K .. 'j:' .. id end

-- Names that are needed for many jobs of one call are put together once.
local function named(prefix)
  return setmetatable({}, {__index = function(names, name)
    local whole_name = K .. prefix .. name
    rawset(names, name, whole_name)
    return whole_name
  end})
end
local INDEX, TIMED, HELD = named('i:'), named('t:'), named('h:')

local function head_of(id)
  local text = call('HGET', job_key(id), 'h')
  return text and unpack_(text)
end

-- News: each topic once for each call.
local told = {}
local function tell(topic)
  if not told[topic] then
    told[topic] = true
    call(ARGV[4], K .. 'n:' .. topic, '')
  end
end

local counted = {}
local function count(state, queue, more)
  local name = state .. queue
  counted[name] = (counted[name] or 0) + more
end

local function write_counts()
  for name, more in pairs(counted) do
    if more ~= 0 and call('HINCRBY', K .. 'c', name, more) == 0 then call('HDEL', K .. 'c', name) end
  end
end

local function ready_member(head, id) return head[RANK] .. head[RUN] .. format('%012x', head[NUMBER]) .. id end
local ID_AT = 47 -- where the id begins in it

local function prune_member(head, id) return format('%012x', head[NUMBER]) .. id end

-- The order of insertion, in lists of BUCKET numbers each: a job costs little more than its id there.
local BUCKET = 128
local function bucket_of(number) return format('%.0f', math.floor(number / BUCKET)) end

-- The highest version that a record ever had.
local function version_ever(name)
  return tonumber(string.match(call('HGET', K .. 'dv', name) or '0', '^%d+'))
end

-- What a packed list says; nothing if somebody wrote something else in its place.
local function list_in(text)
  local is_read, found = pcall(unpack_, text)
  return is_read and type(found) == 'table' and found or {}
end

-- Write a record, or remove it (false).
local function put_record(name, version, at, value)
  if value then
    call('HSET', K .. 'dv', name, version)
    call('HSET', K .. 'd', name, pack({version, at, value}))
    call('ZADD', K .. 'dn', 0, name)
  else
    call('HSET', K .. 'dv', name, format('%.0f %.0f', version, at))
    call('HDEL', K .. 'd', name)
    call('ZREM', K .. 'dn', name)
  end
end

-- The signals in a job's inbox.
local function signals_of(key, head)
  local signals = {}
  for place, version in ipairs(head[INBOX] or {}) do signals[place] = call('HGET', key, 'i' .. version) end
  return signals
end

