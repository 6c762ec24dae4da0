-- What new jobs and changes add to the indexes.

local function waits_for_time(head, now)
  if head[STATE] == 'a' then return number_of(head[RUN]) > now end
  return DUE[head[STATE]] and head[RUN]
end

-- Put a job into the indexes of its state, and wake the workers that wait for its queue.
local function enter(head, id, now, uses)
  local state, queue = head[STATE], head[QUEUE]
  call('ZADD', INDEX[state], 0, id)
  count(state, queue, 1)
  if waits_for_time(head, now) then
    call('ZADD', TIMED[queue], number_of(head[RUN]), id)
    if uses and state == 'a' then make_ready(head, id, now, uses) end
    tell('queue:' .. queue)
  elseif state == 'a' then
    make_ready(head, id, now, uses)
    tell('queue:' .. queue)
  elseif state == 'o' then
    if head[WORKER] then call('HSET', HELD[head[WORKER]], id, head[EPOCH]) end
  elseif ENDED[state] and head[PRUNE] then
    call('ZADD', K .. 'p', head[PRUNE], prune_member(head, id))
  end
  if state == 'p' and waits_for_limit(head) then shared_limits().park(head, id, now) end
  if head[EXPIRES] and (state == 'a' or DUE[state]) then call('ZADD', K .. 'x', head[EXPIRES], id) end
end

local ordered = {}
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

-- Give a key or a unique name to a job: {job, digest or stamp, until}.
local function take_key(name, key)
  call('SET', K .. 'k:' .. name, pack(key))
  call('ZADD', K .. 'ku', key[3] or '+inf', name)
end

-- Write a new job: {id, head, body, result, error, signals, …, uses at place 10, unique at 11, fair key at 12} (see insert). Its
-- number is given here. One that has
-- arrived at its parent is not missing there. Who calls it writes counts and order.
local function add(job, now, arrived)
  local id, head = job[1], job[2]
  head[NUMBER] = call('HINCRBY', STORE, 'n', 1)
  local fields = {'h', pack(head), 'b', job[3]}
  if job[4] then fields[#fields + 1] = 'r'; fields[#fields + 1] = job[4] end
  if job[5] then fields[#fields + 1] = 'x'; fields[#fields + 1] = job[5] end
  for _, signal in ipairs(job[6] or {}) do
    fields[#fields + 1] = 'i' .. signal[1]; fields[#fields + 1] = signal[2]
  end
  local uses = job[10]
  if uses then fields[#fields + 1] = 'u'; fields[#fields + 1] = pack(uses) end
  if job[11] then fields[#fields + 1] = 'q'; fields[#fields + 1] = job[11][1] end
  if job[12] then fields[#fields + 1] = 'f'; fields[#fields + 1] = job[12] end
  fair_keys[id] = job[12] or nil
  call('HSET', job_key(id), unpack(fields))
  put_in_order(head[NUMBER], id)
  enter(head, id, now, uses)
  local parent = head[PARENT]
  if parent then
    call('ZADD', K .. 'c:' .. parent, 0, id)
    if not arrived then call('HINCRBY', K .. 'g:' .. parent, 'g' .. (head[GROUP] or ''), 1) end
    if not ENDED[head[STATE]] then call('HINCRBY', K .. 'g:' .. parent, 'l', 1) end
  end
end

