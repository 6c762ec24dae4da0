-- The shared part in front of every script: the keys, the check of the store, and what several acts do to the indexes.
--
-- All keys of a store start with one hash tag, KEYS[1] = "{app}", so that a cluster keeps them on one node. Names:
--
--   store          HASH  id (random, created with the store), format, oldest, seq (counts writes), gen (counts the servers
--                        that this store has been on), run (its present server), bN (seq when generation N began),
--                        n (counts jobs), place (counts step records),
--                        shift (of a test's clock, in milliseconds), moved (the record `moved`, while it exists)
--   j:ID           HASH  one job: h its head (below), b its body (arguments and whatever else never changes, opaque here),
--                        r result, x error, iV the signal of version V, eV the history entry of version V (opaque)
--   i:STATE        ZSET  the ids of the jobs in this state, all with score 0: sorted by id
--   o, o:N         ZSET, LIST   all jobs in the order of their numbers: the existing lists; the ids of each BUCKET numbers
--   q:N:QUEUE:TYPE ZSET  the claimable jobs of one type, all with score 0: rank, run_at, number, id as one text, so the
--                        first is next (N is the length of the queue's name)
--   y:QUEUE        SET   the types with claimable jobs in a queue
--   r:QUEUE        ZSET  the claimable jobs of all types: format-1 processes write it, and claim sorts it into the types
--   t:QUEUE        ZSET  jobs that wait for a time, by run_at: scheduled, retryable, pending, and available ones after lost workers
--   x, xi          ZSET, ZSET   jobs that can expire, by expires_at; those found to have expired, all with score 0
--   p              ZSET  ended jobs to prune, by prune_at: number and id
--   b:ID           SET   ended jobs that are kept because this job, their parent, has not ended
--   u              LIST  parents that have ended and whose b:ID must be checked again
--   s:ID, f:ID     HASH, SET   the step records of a job: path → state, place, record (opaque); the paths that failed
--   m:ID           HASH  how many steps a job has: state and name as one text → number; NAME with an = in front has its own
--                        counters; = how many names have. Names are as in their records, in JSON
--   l:ID           ZSET  the records of a job, all with score 0: place and path of a step; after them the paths of our
-- own records
--   c:ID           ZSET  the ids of a job's children, all with score 0
--   g:ID           HASH  a job's children: gGROUP how many have not arrived, l how many have not ended
--   k:N:TYPE:KEY   STRING  the holder of an idempotency key: job, digest, until (N is the length of the type)
--   ku             ZSET  all keys, by their expiry; +inf without one
--   h:WORKER       HASH  the jobs that a worker holds: id → epoch
--   w              HASH  worker → its last heartbeat: time, connection, generation, status (opaque)
--   c              HASH  how many jobs: STATE and queue as one text → number
--   d, dv, dn      HASH, HASH, ZSET   records: name → version, time, value; name → highest version so far; names, sorted;
--                        for a removed record, the time of its removal follows its highest version
--   n:TOPIC              not a key: the channel for notifications of a topic; n:* is for everybody
--
-- A head is an array: state, version, epoch, queue, number, rank, run_at, attempt, recoveries, worker, claimed_at,
-- finished_at, prune_at, arrived, parent, group, expires_at, waits, type, key, inbox, first, more. A missing value is `false`.
-- more: 1 there is a result, 2 there is an error, and 4 for each version: m:ID and l:ID are valid while this counts as many
-- versions as the job has. Format-2 processes count only versions, and reset this.
-- Numbers beyond 2^53 are texts and are never calculated with. rank and run_at are texts that sort like the numbers.
-- States are letters: s(cheduled) a(vailable) p(ending) o(wned: active) r(etryable) v (review) c(ompleted) d(iscarded)
-- k (cancelled).
--
-- ARGV starts with the store's id, generation and seq as the caller knows them, and the command for notifications.

if redis.replicate_commands then redis.replicate_commands() end -- Redis 6.2: we read the time before we write
local call, pack, unpack_, sub, format = redis.call, cmsgpack.pack, cmsgpack.unpack, string.sub, string.format
local K = KEYS[1] .. ':'
local STORE = K .. 'store'
local FIRST_ARG = 5

-- The check of the store: one that was emptied, replaced or went back isn't the one that the caller expects.
local door = call('HMGET', STORE, 'id', 'gen', 'seq', 'shift', 'moved')
if door[1] ~= ARGV[1] or door[2] ~= ARGV[2] or tonumber(door[3]) < tonumber(ARGV[3]) then
  return {'lost', door[1], door[2], door[3]}
end
local seq = tonumber(door[3])
local moved = door[5] and {'moved', door[5]} -- what every write returns while the jobs are being moved

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

-- A running or ended job can't expire any more.
local function keep(ids)
  call('ZREM', K .. 'x', unpack(ids))
  call('ZREM', K .. 'xi', unpack(ids))
end

local function expired(head, now) return head[EXPIRES] and tonumber(head[EXPIRES]) <= now end

local function job_key(id) return K .. 'j:' .. id end

-- Names that are needed for many jobs of one call are built once.
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

-- Notifications: each topic once per call.
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
local ID_AT = 47 -- where the id starts in it
local function ready_key(queue, kind) return K .. 'q:' .. #queue .. ':' .. queue .. ':' .. kind end

-- A queue's types are noted once per call.
local noted = {}
local function make_ready(head, id)
  local key = ready_key(head[QUEUE], head[TYPE])
  call('ZADD', key, 0, ready_member(head, id))
  if not noted[key] then
    noted[key] = true
    call('SADD', K .. 'y:' .. head[QUEUE], head[TYPE])
  end
end

-- A job of a type was taken: was it the last?
local function taken_from(queue, kind)
  local key = ready_key(queue, kind)
  if call('EXISTS', key) == 0 then
    noted[key] = nil
    call('SREM', K .. 'y:' .. queue, kind)
  end
end

local function prune_member(head, id) return format('%012x', head[NUMBER]) .. id end

local function waits_for_time(head, now)
  if head[STATE] == 'a' then return number_of(head[RUN]) > now end
  return DUE[head[STATE]] and head[RUN]
end

-- Remove a job from the indexes of its present state.
local function leave(head, id)
  local state, queue = head[STATE], head[QUEUE]
  call('ZREM', INDEX[state], id)
  count(state, queue, -1)
  if state == 'a' then
    local member = ready_member(head, id)
    if call('ZREM', ready_key(queue, head[TYPE]), member) == 1 then
      taken_from(queue, head[TYPE])
    elseif call('ZREM', K .. 'r:' .. queue, member) == 0 then
      call('ZREM', TIMED[queue], id)
    end
  elseif state == 'o' then
    if head[WORKER] then call('HDEL', HELD[head[WORKER]], id) end
  elseif DUE[state] and head[RUN] then
    call('ZREM', TIMED[queue], id)
  end
  if head[EXPIRES] and (state == 'a' or DUE[state]) then keep({id}) end
end

-- Add a job to the indexes of its present state, and notify waiters of its queue.
local function enter(head, id, now)
  local state, queue = head[STATE], head[QUEUE]
  call('ZADD', INDEX[state], 0, id)
  count(state, queue, 1)
  if waits_for_time(head, now) then
    call('ZADD', TIMED[queue], number_of(head[RUN]), id)
    tell('queue:' .. queue)
  elseif state == 'a' then
    make_ready(head, id)
    tell('queue:' .. queue)
  elseif state == 'o' then
    if head[WORKER] then call('HSET', HELD[head[WORKER]], id, head[EPOCH]) end
  elseif ENDED[state] and head[PRUNE] then
    call('ZADD', K .. 'p', head[PRUNE], prune_member(head, id))
  end
  if head[EXPIRES] and (state == 'a' or DUE[state]) then call('ZADD', K .. 'x', head[EXPIRES], id) end
end

-- The order of insertion, in lists of BUCKET numbers each: there a job costs little more than its id.
local BUCKET = 128
local ordered = {}
local function bucket_of(number) return format('%.0f', math.floor(number / BUCKET)) end

local function put_in_order(number, id)
  local bucket = bucket_of(number)
  local ids = ordered[bucket] or {}
  ordered[bucket], ids[#ids + 1] = ids, id
end

local function write_order()
  for bucket, ids in pairs(ordered) do
    if call('RPUSH', K .. 'o:' .. bucket, unpack(ids)) == #ids then call('ZADD', K .. 'o', bucket, bucket) end
  end
end

-- Write a new job: {id, head, body, result, error, signals}. Assigns its number. A job that has arrived at its parent
-- isn't missing there. The caller writes counts and order.
local function add(job, now, arrived)
  local id, head = job[1], job[2]
  head[NUMBER] = call('HINCRBY', STORE, 'n', 1)
  local fields = {'h', pack(head), 'b', job[3]}
  if job[4] then fields[#fields + 1] = 'r'; fields[#fields + 1] = job[4] end
  if job[5] then fields[#fields + 1] = 'x'; fields[#fields + 1] = job[5] end
  for _, signal in ipairs(job[6] or {}) do
    fields[#fields + 1] = 'i' .. signal[1]; fields[#fields + 1] = signal[2]
  end
  call('HSET', job_key(id), unpack(fields))
  put_in_order(head[NUMBER], id)
  enter(head, id, now)
  local parent = head[PARENT]
  if parent then
    call('ZADD', K .. 'c:' .. parent, 0, id)
    if not arrived then call('HINCRBY', K .. 'g:' .. parent, 'g' .. (head[GROUP] or ''), 1) end
    if not ENDED[head[STATE]] then call('HINCRBY', K .. 'g:' .. parent, 'l', 1) end
  end
end

-- A job has ended: the jobs that were kept because of it can be pruned.
local function free_kin(head, id)
  local parent = head[PARENT]
  if parent and call('HINCRBY', K .. 'g:' .. parent, 'l', -1) == 0 then
    local above = head_of(parent)
    if above and ENDED[above[STATE]] and above[PRUNE] then
      call('ZADD', K .. 'p', above[PRUNE], prune_member(above, parent))
    end
  end
  if call('EXISTS', K .. 'b:' .. id) == 1 then call('RPUSH', K .. 'u', id) end
end

-- Whether the counters of a job's steps are valid.
local function is_counted(head) return math.floor(head[MORE] / EACH_VERSION) == head[VERSION] end

local function is_own(path) return sub(path, 1, 1) == '~' end

-- The name in a step record, as JSON has it between the quotes; nil if it can't be read.
local function name_of(record)
  local name = string.match(record, '^%[[^,]*,"([^"\\]*)"')
  if name then return name end
  local _, first = string.find(record, '^%[[^,]*,"')
  local place = first
  while place do
    place = string.find(record, '["\\]', place + 1)
    if not place then break end
    if sub(record, place, place) == '"' then return sub(record, first + 1, place - 1) end
    place = place + 1 -- the escaped character
  end
  return ''
end

-- What the steps of one call add to the counters, by name in the order of the steps.
local steps_counted, all_counted = {}, {}
local function count_step(id, name, state, more)
  local whole_name = id .. '\0' .. name
  local counts = steps_counted[whole_name]
  if not counts then
    counts = {id = id, name = name, s = 0, d = 0, f = 0}
    steps_counted[whole_name], all_counted[#all_counted + 1] = counts, counts
  end
  counts[state] = counts[state] + more
end

local STEP_NAMES = 100 -- as in core/limits.py
local function write_step_counts()
  for _, counts in ipairs(all_counted) do
    local key, name = K .. 'm:' .. counts.id, counts.name
    if name ~= '' and call('HEXISTS', key, '=' .. name) == 0 then
      if tonumber(call('HGET', key, '=') or 0) < STEP_NAMES then
        call('HSET', key, '=' .. name, 1)
        call('HINCRBY', key, '=', 1)
      else
        name = ''
      end
    end
    for _, state in ipairs({'s', 'd', 'f'}) do
      if counts[state] ~= 0 then call('HINCRBY', key, state .. name, counts[state]) end
    end
  end
  steps_counted, all_counted = {}, {}
end

-- Store a step record, unless there is one that is done or failed: then return that one. The caller writes the counts.
local function put_step(id, path, state, record, counts)
  local key = K .. 's:' .. id
  local old = call('HGET', key, path)
  local place
  if not old then
    place = format('%012x', call('HINCRBY', STORE, 'place', 1))
  elseif sub(old, 1, 1) == 's' then
    place = sub(old, 2, 13)
  else
    return old
  end
  call('HSET', key, path, state .. place .. record)
  if state == 'f' then call('SADD', K .. 'f:' .. id, path) end
  if not counts then return end
  if not old then call('ZADD', K .. 'l:' .. id, 0, is_own(path) and path or place .. path) end
  if not is_own(path) then
    if old then count_step(id, name_of(sub(old, 14)), 's', -1) end
    count_step(id, name_of(record), state, 1)
  end
end

-- Remove step records. The caller writes the counts.
local function drop_steps(id, paths, counts)
  for _, path in ipairs(paths) do
    local old = call('HGET', K .. 's:' .. id, path)
    if old then
      call('HDEL', K .. 's:' .. id, path)
      call('SREM', K .. 'f:' .. id, path)
      if counts then
        call('ZREM', K .. 'l:' .. id, is_own(path) and path or sub(old, 2, 13) .. path)
        if not is_own(path) then count_step(id, name_of(sub(old, 14)), sub(old, 1, 1), -1) end
      end
    end
  end
end

-- The highest version that a record has ever had.
local function version_ever(name)
  return tonumber(string.match(call('HGET', K .. 'dv', name) or '0', '^%d+'))
end

-- The content of a packed list; nil if somebody wrote something else in its place.
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

-- What a reader gets of a job: head, body, result, error, and the signals in its inbox.
local function whole(id, text, head)
  local key = job_key(id)
  local got = call('HMGET', key, 'b', 'r', 'x')
  return {id, text, got[1], got[2], got[3], signals_of(key, head)}
end
