-- claim: {worker, how many, page, a name for the set of types, how many types or -1 for any, types …, then for each queue its name and how many of it may
-- still be promoted}. Looks at no more than a page of due jobs, and takes no more than a page, in one call. When there may
-- be more, it says in which queue, and the caller continues there.
-- It looks at the keys of limits that a recheck names, and takes jobs that wait behind them in the same order as the others.
-- Answers {seq, now, next due or false, the queue to continue with or 0, how many were promoted there, jobs …}.
if moved then return moved end
local worker, left, page = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local known = tonumber(ARGV[FIRST_ARG + 4])
local FIRST_TYPE = FIRST_ARG + 5
local FIRST_QUEUE = FIRST_TYPE + math.max(known, 0)
local DEALT = 200 -- how much of what processes of format 1 made ready is dealt out in one call
local LOOKS, NEW_LOOKS = 30, 20 -- how many keys one call looks at, and of how many that no claim has looked at yet
local LOOKED_AT = 1e14 -- what is taken from the time of a recheck that a claim has left standing
local now = time_now()
local answer = {seq, now, false, 0, 0}
local wrote = false
local permits, beside_limits, in_turn -- made by the first who needs them

-- Write a job's new state and its entry. Who calls it moves it between the indexes.
local function write(key, head, id, state, event, by)
  local before = head[STATE]
  head[STATE], head[VERSION], head[MORE] = state, head[VERSION] + 1, head[MORE] + EACH_VERSION
  local text = pack(head)
  local entry = format('[%.0f,"%s","%s","%s","%s",%.0f]', now, event, before, state, by, head[EPOCH])
  call('HSET', key, 'h', text, 'e' .. head[VERSION], entry)
  tell('job:' .. id)
  return text
end

local function job_with_uses(id)
  local got = call('HMGET', job_key(id), 'h', 'u', 'f')
  fair_keys[id] = got[3] or nil
  return got[1] and unpack_(got[1]), got[2] and unpack_(got[2])
end

-- What processes of format 1 have made ready goes to its type.
local function deal_out(queue)
  local old = call('ZPOPMIN', K .. 'r:' .. queue, DEALT)
  for place = 1, #old, 2 do
    local id = sub(old[place], ID_AT)
    local head, uses = job_with_uses(id)
    if head and head[STATE] == 'a' and ready_member(head, id) == old[place] then make_ready(head, id, now, uses) end
    wrote = true
  end
  return #old / 2
end

-- scheduled, retryable → available; pending → available
local function make_available(head, id, by)
  local event, queue = 'promote', head[QUEUE]
  if head[STATE] == 'p' then
    if waits_for_limit(head) then shared_limits().unpark(head, id) end
    event, head[RUN] = 'activate', moment_of(now)
  end
  head[WAITS] = false
  call('ZREM', INDEX[head[STATE]], id)
  call('ZADD', INDEX['a'], 0, id)
  count(head[STATE], queue, -1)
  count('a', queue, 1)
  write(job_key(id), head, id, 'a', event, by)
end

-- What is due, and what was available, but not yet.
local function promote(queue, most)
  local due = call('ZRANGEBYSCORE', TIMED[queue], '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(due) do
    local head, uses = job_with_uses(id)
    call('ZREM', TIMED[queue], id)
    if head and not expired(head, now) then
      if DUE[head[STATE]] then make_available(head, id, 'time') end
      make_ready(head, id, now, uses)
      tell('queue:' .. queue) -- who claims may not know its type
    end
    wrote = true
  end
  return #due
end

-- The keys that this call must look at, if there are any; when the next one is due; and whether there are more that no claim has
-- looked at yet. Of many, these come first, and then those at which one looked longest ago.
local function keys_to_look_at(queue)
  local name = K .. 'lr:' .. queue
  local found = call('ZRANGE', name, 0, LOOKS - 1, 'WITHSCORES')
  if #found == 0 then return nil, false, false end
  local keys, later, seen = {}, false, {}
  if #found == 2 * LOOKS then
    keys = call('ZRANGEBYSCORE', name, 0, now, 'LIMIT', 0, NEW_LOOKS)
    for _, key in ipairs(keys) do seen[key] = true end
  end
  local are_more = #keys == NEW_LOOKS
  for place = 1, #found, 2 do
    if tonumber(found[place + 1]) > now then
      later = later or found[place + 1]
    elseif #keys < LOOKS and not seen[found[place]] then
      keys[#keys + 1] = found[place]
    end
  end
  return #keys > 0 and keys or nil, later, are_more
end

-- The types to look at: those that are known, and of which the queue has something.
local is_known = {}
for place = FIRST_TYPE, FIRST_QUEUE - 1 do is_known[ARGV[place]] = true end

local function kinds_of(queue)
  local kinds = {}
  for _, kind in ipairs(call('SMEMBERS', K .. 'y:' .. queue)) do
    if known < 0 or is_known[kind] then kinds[#kinds + 1] = kind end
  end
  return kinds
end

-- The types side by side: {key, how many of it were taken, the next of it, where we are in those}.
local AT_KEY, AT_TAKEN, AT_NEXT, AT_PLACE = 1, 2, 3, 4

local function fill(walk, size)
  walk[AT_NEXT], walk[AT_PLACE] = call('ZRANGE', walk[AT_KEY], walk[AT_TAKEN], walk[AT_TAKEN] + size - 1), 1
  return #walk[AT_NEXT] > 0
end

-- The first members of all types, in order. They begin with fixed digits, which Lua compares as the server orders them.
local function first_of(queue, kinds, most)
  local size = math.ceil(most / #kinds) + 1
  local walks, all, members = {}, {}, {}
  for _, kind in ipairs(kinds) do
    local walk = {ready_key(queue, kind), 0, kind = kind}
    if fill(walk, size) then walks[#walks + 1], all[#all + 1] = walk, walk end
  end
  while #members < most and #walks > 0 do
    local best, least = 1, walks[1][AT_NEXT][walks[1][AT_PLACE]]
    for place = 2, #walks do
      local member = walks[place][AT_NEXT][walks[place][AT_PLACE]]
      if member < least then best, least = place, member end
    end
    local walk = walks[best]
    members[#members + 1] = least
    walk[AT_TAKEN], walk[AT_PLACE] = walk[AT_TAKEN] + 1, walk[AT_PLACE] + 1
    if walk[AT_PLACE] > #walk[AT_NEXT] and not fill(walk, size) then table.remove(walks, best) end
  end
  for _, walk in ipairs(all) do
    if walk[AT_TAKEN] > 0 then
      call('ZPOPMIN', walk[AT_KEY], walk[AT_TAKEN])
      taken_from(queue, walk.kind)
    end
  end
  return members
end

local function pop_first(queue, kinds, most)
  if #kinds == 0 then return {} end
  if #kinds > 1 then return first_of(queue, kinds, most) end
  local members = {}
  local popped = call('ZPOPMIN', ready_key(queue, kinds[1]), most)
  for place = 1, #popped, 2 do members[#members + 1] = popped[place] end
  taken_from(queue, kinds[1])
  return members
end

-- available → active, of one queue. Indexes that are the same for all are written once.
local taken, left_index, new_index, held, expiring

local function give(id, key, head, got)
  head[EPOCH], head[WORKER], head[CLAIMED] = head[EPOCH] + 1, worker, now
  taken = taken + 1
  left_index[taken], new_index[2 * taken - 1], new_index[2 * taken] = id, 0, id
  held[2 * taken - 1], held[2 * taken] = id, head[EPOCH]
  if head[EXPIRES] then expiring[#expiring + 1] = id end
  local text = write(key, head, id, 'o', 'claim', worker)
  answer[#answer + 1] = {id, text, got[2], got[3], got[4], signals_of(key, head)}
end

local function take_first(queue, most)
  local looked = 0
  local kinds = most > 0 and kinds_of(queue) or {}
  while taken < most and looked < 2 * page do
    local popped = pop_first(queue, kinds, most - taken)
    if #popped == 0 then break end
    looked = looked + #popped
    wrote = true
    for _, member in ipairs(popped) do
      local id = sub(member, ID_AT)
      local key = job_key(id)
      local got = call('HMGET', key, 'h', 'b', 'r', 'x', 'u', 'f')
      local head = got[1] and unpack_(got[1])
      fair_keys[id] = got[6] or nil
      if head and (head[STATE] ~= 'a' or ready_member(head, id) ~= member) then
        head = nil -- a process of format 1 has changed it, and looked for it elsewhere
      end
      if head and (got[5] or got[6]) then -- a process of an older format has made it available
        make_ready(head, id, now, got[5] and unpack_(got[5]))
        looked = page
      elseif head and number_of(head[RUN]) > now then -- the clock was set back
        call('ZADD', TIMED[queue], number_of(head[RUN]), id)
      elseif head and not expired(head, now) then
        give(id, key, head, got)
      end
    end
  end
  return looked
end

-- What a claim does beside limits: made only if there are keys to look at.
local function claims_beside_limits()
  local claims, limits = {}, shared_limits()
  local asleep = {} -- what keeps those who gave up their slots behind a key from being woken

  -- Wake jobs whose steps wait for a permit of this key, while there is room, and keep it for them.
  function claims.wake_parked(queue, key, most)
    local woken = 0
    for _, member in ipairs(call('ZRANGE', limits.parked_key(queue, key), 0, most - 1)) do
      local id = sub(member, 13)
      local head, uses = job_with_uses(id)
      local full = permits.full_to_wake(key)
      if not head or head[STATE] ~= 'p' or limits.parked_behind(head) ~= key then -- a process of format 3 has changed it
        limits.forget_parked(queue, key, member)
      elseif full then
        asleep[key] = full
        break
      else
        permits.reserve(key, id, uses)
        if head[RUN] then call('ZREM', TIMED[queue], id) end
        make_available(head, id, 'limit')
        make_ready(head, id, now, uses)
        tell('queue:' .. queue)
      end
      woken = woken + 1
    end
    return woken
  end

  -- The types of a queue, and those behind each key, side by side. Of each only the first two at first: most give no more.
  local function walks_of(queue, keys)
    local walks = {}
    local function add_walk(set, kind, key)
      local members = call('ZRANGE', set, 0, 1)
      if #members > 0 then walks[#walks + 1] = {set = set, kind = kind, key = key, members = members, place = 1} end
    end
    for _, kind in ipairs(kinds_of(queue)) do add_walk(ready_key(queue, kind), kind) end
    for _, key in ipairs(keys) do
      for _, kind in ipairs(call('SMEMBERS', limits.waiting_kinds(queue, key))) do
        if known < 0 or is_known[kind] then add_walk(limits.waiting_key(queue, key, kind), kind, key) end
      end
    end
    return walks
  end

  local function first_walk(walks)
    local best, least = 1, walks[1].members[walks[1].place]
    for place = 2, #walks do
      local member = walks[place].members[walks[place].place]
      if member < least then best, least = place, member end
    end
    return best, least
  end

  -- Take a job, or move it to where it belongs. Answers with what keeps all jobs behind a key from starting, if that is so.
  local function take_or_move(queue, walk, member)
    local id = sub(member, ID_AT)
    local key = job_key(id)
    local got = call('HMGET', key, 'h', 'b', 'r', 'x', 'u')
    local head, uses = got[1] and unpack_(got[1]), got[5] and unpack_(got[5])
    local is_here = head and head[STATE] == 'a' and ready_member(head, id) == member and (not walk.key or uses and uses[1] == walk.key)
    local is_ripe = is_here and number_of(head[RUN]) <= now and not expired(head, now)
    local block = is_ripe and walk.key and permits.block(uses, 2, id, '')
    if block and block[1] == walk.key then return block end
    if walk.key then limits.stop_waiting(queue, walk.key, walk.kind, member) else call('ZREM', walk.set, member) end
    if block then
      uses[1] = block[1]
      call('HSET', key, 'u', pack(uses))
      limits.wait_behind(head, id, block[1])
      permits.look_later(queue, block[1], block[2])
      return block
    elseif is_ripe and uses and not walk.key then -- a process of format 3 has made it available
      make_ready(head, id, now, uses)
    elseif is_ripe then
      if uses then permits.start(uses, 2, id, head[EPOCH] + 1, '', 1) end
      give(id, key, head, got)
    elseif is_here then
      if number_of(head[RUN]) > now then call('ZADD', TIMED[queue], number_of(head[RUN]), id) end -- the clock was set back
      if uses then limits.set_aside(uses[1], id) end
    end
  end

  -- After a claim has looked at a key: let the next one look at it when there may be room for somebody.
  local function look_again(queue, key, block)
    block = block or permits.full(key)
    local is_waited_for = call('HEXISTS', K .. 'lq:' .. key, queue) == 1
    if is_waited_for and not block then
      call('ZADD', K .. 'lr:' .. queue, now - LOOKED_AT, key)
    else
      call('ZREM', K .. 'lr:' .. queue, key)
      if is_waited_for then permits.look_later(queue, key, block[2]) end
    end
  end

  -- Take jobs in order: those without limits, and those behind these keys that get their permits.
  function claims.take_in_order(queue, most, keys)
    local walks, blocks, looked = walks_of(queue, keys), {}, 0
    wrote = true
    while #walks > 0 and taken < most and looked < 2 * page do
      local best, member = first_walk(walks)
      local walk = walks[best]
      local block = take_or_move(queue, walk, member)
      looked = looked + 1
      if not block or block[1] ~= walk.key then
        walk.place = walk.place + 1
        if walk.place > #walk.members then
          walk.members, walk.place = call('ZRANGE', walk.set, 0, page - 1), 1
          if #walk.members == 0 then
            table.remove(walks, best)
            if not walk.key then taken_from(queue, walk.kind) end
          end
        end
      end
      if block then -- nobody behind this key can start
        blocks[block[1]] = block
        for place = #walks, 1, -1 do
          if walks[place].key == block[1] then table.remove(walks, place) end
        end
      end
    end
    claims.look_again(queue, keys, blocks)
    return looked
  end

  -- The same for all keys that a claim has looked at.
  function claims.look_again(queue, keys, blocks)
    for _, key in ipairs(keys) do
      local has_available = call('EXISTS', limits.waiting_kinds(queue, key)) == 1
      look_again(queue, key, blocks[key] or not has_available and asleep[key])
    end
    asleep = {}
  end

  return claims
end

-- Whether a queue has jobs with fair keys, of types that are known.
local function has_turns(queue)
  for _, kind in ipairs(fair_kinds(queue)) do
    if known < 0 or is_known[kind] then return true end
  end
end

-- A rank as the number of its priority; or itself, if that is out of the ordinary.
local function level_of_rank(rank)
  local low = tonumber(sub(rank, 10), 16)
  if sub(rank, 1, 9) == '07fffffff' then return format('%.0f', 4294967295 - low) end
  return sub(rank, 1, 9) == '100000000' and format('-%.0f', low + 1) or rank
end

local function take_in_turn(queue, most, keys)
  permits = permits or permits_at(now)
  in_turn = in_turn or claims_in_turn({
    now = now, page = page, round = ARGV[FIRST_ARG + 3], kinds_of = kinds_of, give = give, level = level_of_rank,
    is_known = function(kind) return known < 0 or is_known[kind] end, limits = shared_limits,
    permits = function() return permits end, taken = function() return taken end,
  })
  wrote = true
  local blocks, looked = in_turn.take(queue, most, keys or {})
  if keys then beside_limits.look_again(queue, keys, blocks) end
  return looked
end

-- Answers how many were taken, and looked at.
local function take(queue, most, keys)
  taken, left_index, new_index, held, expiring = 0, {}, {}, {}, {}
  local looked
  if most > 0 and has_turns(queue) then
    looked = take_in_turn(queue, most, keys)
  else
    looked = keys and beside_limits.take_in_order(queue, most, keys) or take_first(queue, most)
  end
  if taken > 0 then
    call('ZREM', INDEX['a'], unpack(left_index))
    call('ZADD', INDEX['o'], unpack(new_index))
    call('HSET', HELD[worker], unpack(held))
    if #expiring > 0 then keep(expiring) end
    count('a', queue, -taken)
    count('o', queue, taken)
  end
  return taken, looked
end

local function next_due(queue, later)
  local found = call('ZRANGEBYSCORE', TIMED[queue], '(' .. format('%.0f', now - 1000), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  for _, at in ipairs({found[2] or later, later}) do
    if at and (not answer[3] or tonumber(at) < tonumber(answer[3])) then answer[3] = at end
  end
end

-- Answers whether the caller must continue with this queue.
local function claim(queue, may)
  answer[5] = 0
  if deal_out(queue) == DEALT then return true end
  local promoted = may > 0 and promote(queue, math.min(may, page)) or 0
  answer[5] = promoted
  if promoted == page and may > page then return true end
  local keys, later, are_more = keys_to_look_at(queue)
  if keys then
    permits = permits or permits_at(now)
    beside_limits = beside_limits or claims_beside_limits()
    local woken = 0
    for _, key in ipairs(keys) do
      woken = woken + beside_limits.wake_parked(queue, key, page - woken)
      if woken == page then
        wrote = true
        return true
      end
    end
  end
  local taken_here, looked = take(queue, math.min(left, page), keys)
  left = left - taken_here
  answer[5] = may
  if (looked >= page or are_more) and left > 0 then return true end
  if keys then later = call('ZRANGEBYSCORE', K .. 'lr:' .. queue, '(' .. format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] end
  if left > 0 then next_due(queue, later) end
end

for place = FIRST_QUEUE, #ARGV, 2 do
  if call('HEXISTS', K .. 'd', 'pause/' .. ARGV[place]) == 1 then
    next_due(ARGV[place])
  elseif claim(ARGV[place], tonumber(ARGV[place + 1])) then
    answer[4] = (place - FIRST_QUEUE) / 2 + 1
    break
  elseif left <= 0 then
    break
  end
end
if permits then permits.finish() end
if answer[4] == 0 then answer[5] = 0 end
if wrote then
  count_act()
  answer[1] = seq
  write_counts()
end
return answer
