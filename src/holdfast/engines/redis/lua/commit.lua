-- commit: each further argument is one change. A conflict has no effect on the other changes.
-- {id, expected epoch, expected version, state, run_at, epoch, attempt, recoveries, worker, claimed_at, finished_at,
--  prune_at, arrives, waits, error, result, entry, cargo, whether permits may end}; cargo is {body, steps, drops, drops_failed, signal, takes,
--  new jobs, groups it waits for} or false.
-- Returns, for each: {1, version, missing or false}, or {0, reason, state, version, epoch} (reason: 1 there is no such job,
-- 2 the lease was lost, 3 somebody was faster, 4 its children have arrived).
if moved then return moved end
local NO_JOB, LEASE_LOST, OUTRUN, CHILDREN_ARE_IN = 1, 2, 3, 4
local now = time_now()
local permits -- made by the first who needs them

-- Take a job out of the indexes of the state it is in. `uses`: its field u, or nothing.
local function leave(head, id, uses)
  local state, queue = head[STATE], head[QUEUE]
  call('ZREM', INDEX[state], id)
  count(state, queue, -1)
  if state == 'a' then
    local member = ready_member(head, id)
    local has_waited = uses and shared_limits().leave(head, id, uses)
    if not has_waited and fair_keys[id] then has_waited = leave_turns(queue, '', head[TYPE], fair_member(head, id)) end
    if not has_waited and call('ZREM', ready_key(queue, head[TYPE]), member) == 1 then
      taken_from(queue, head[TYPE])
    elseif not has_waited and call('ZREM', K .. 'r:' .. queue, member) == 0 then
      call('ZREM', TIMED[queue], id)
    end
  elseif state == 'o' then
    if head[WORKER] then call('HDEL', HELD[head[WORKER]], id) end
  elseif DUE[state] and head[RUN] then
    call('ZREM', TIMED[queue], id)
  end
  if state == 'p' and waits_for_limit(head) then shared_limits().unpark(head, id) end
  if head[EXPIRES] and (state == 'a' or DUE[state]) then keep({id}) end
end

-- A job has ended: what it kept from leaving may leave.
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

local function refused(why, head) return {0, why, head[STATE], head[VERSION], head[EPOCH]} end

local function merge_inbox(head, id, signal, takes)
  local inbox = head[INBOX] or {}
  for _, taken in ipairs(takes) do
    for place, version in ipairs(inbox) do
      if version == taken then
        table.remove(inbox, place)
        call('HDEL', job_key(id), 'i' .. version)
        break
      end
    end
  end
  if signal then
    inbox[#inbox + 1] = head[VERSION]
    call('HSET', job_key(id), 'i' .. head[VERSION], signal)
  end
  head[INBOX] = #inbox > 0 and inbox
end

local function commit(change)
  local id, key = change[1], job_key(change[1])
  local got = call('HMGET', key, 'h', 'u', 'f')
  if not got[1] then return {0, NO_JOB} end
  local head, uses = unpack_(got[1]), got[2] and unpack_(got[2])
  fair_keys[id] = got[3] or nil
  if change[2] and (head[EPOCH] ~= change[2] or head[STATE] ~= 'o') then return refused(LEASE_LOST, head) end
  if change[3] and head[VERSION] ~= change[3] then return refused(OUTRUN, head) end
  local cargo = change[18]
  if cargo then
    for _, group in ipairs(cargo[8]) do
      if tonumber(call('HGET', K .. 'g:' .. id, 'g' .. group) or 0) == 0 then return refused(CHILDREN_ARE_IN, head) end
    end
  end

  local moves = head[STATE] ~= change[4] or head[RUN] ~= change[5] or head[WORKER] ~= change[9]
    or (uses and change[4] == 'a') or (change[4] == 'p' and head[WAITS] ~= change[14])
  if moves then leave(head, id, uses) end
  local had_ended, had_arrived = ENDED[head[STATE]], head[ARRIVED]
  -- An owner isn't notified of its own changes: it would send a heartbeat for every job that it ends.
  if head[WORKER] and not change[9] and not change[2] then tell('worker:' .. head[WORKER]) end
  head[STATE], head[VERSION], head[EPOCH] = change[4], head[VERSION] + 1, change[6]
  head[MORE] = head[MORE] + EACH_VERSION
  for place = ATTEMPT, CLAIMED do head[place] = change[place - 1] end
  head[RUN], head[FINISHED], head[PRUNE], head[WAITS] = change[5], change[11], change[12], change[14]
  head[ARRIVED] = had_arrived or change[13]
  if cargo then merge_inbox(head, id, cargo[5], cargo[6]) end
  local gone = {}
  local had = head[MORE] % EACH_VERSION
  local counts = is_counted(head)
  head[MORE] = head[MORE] - had + (change[16] and HAS_RESULT or 0) + (change[15] and HAS_ERROR or 0)
  if had % 2 == HAS_RESULT and not change[16] then gone[#gone + 1] = 'r' end
  if had >= HAS_ERROR and not change[15] then gone[#gone + 1] = 'x' end
  if #gone > 0 then call('HDEL', key, unpack(gone)) end
  local fields = {'h', pack(head), 'e' .. head[VERSION], change[17]}
  if change[16] then fields[#fields + 1] = 'r'; fields[#fields + 1] = change[16] end
  if change[15] then fields[#fields + 1] = 'x'; fields[#fields + 1] = change[15] end
  if cargo and cargo[1] then fields[#fields + 1] = 'b'; fields[#fields + 1] = cargo[1] end
  call('HSET', key, unpack(fields))
  if moves then enter(head, id, now, uses) end
  tell('job:' .. id)

  if cargo then
    if cargo[4] then drop_steps(id, call('SMEMBERS', K .. 'f:' .. id), counts) end
    drop_steps(id, cargo[3], counts)
    for _, step in ipairs(cargo[2]) do put_step(id, step[1], step[2], step[3], counts) end
    for _, job in ipairs(cargo[7]) do
      if call('EXISTS', job_key(job[1])) == 0 then
        add(job, now)
        if job[11] then take_key(job[11][1], {job[1], job[11][2], job[11][3]}) end
      end
    end
  end
  local missing = false
  if change[13] and not had_arrived then
    missing = call('HINCRBY', K .. 'g:' .. head[PARENT], 'g' .. (head[GROUP] or ''), -1)
    tell('job:' .. head[PARENT])
  end
  if ENDED[head[STATE]] and not had_ended then free_kin(head, id) end
  if change[19] then
    permits = permits or permits_at(now)
    permits.release(id)
  end
  return {1, head[VERSION], missing}
end

count_act()
local answers = {seq}
for place = FIRST_ARG, #ARGV do answers[#answers + 1] = commit(unpack_(ARGV[place])) end
write_counts()
write_step_counts()
write_order()
return answers
