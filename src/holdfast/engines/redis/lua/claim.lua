-- claim: {worker, how many, page, number of types or -1 for any, types …, then for each queue its name and how many of its jobs
-- may still be promoted}. One call reads at most a page of due jobs and takes at most a page. If there may be more, it returns
-- the queue with which the caller continues.
-- Returns {seq, now, next due or false, the queue to continue with or 0, how many were promoted there, jobs …}.
if moved then return moved end
local worker, left, page = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local known = tonumber(ARGV[FIRST_ARG + 3])
local FIRST_TYPE = FIRST_ARG + 4
local FIRST_QUEUE = FIRST_TYPE + math.max(known, 0)
local DEALT = 200 -- how many ready jobs of format-1 processes one call sorts into their types
local now = time_now()
local answer = {seq, now, false, 0, 0}
local wrote = false

-- Write a job's new state and its entry. The caller updates the indexes.
local function write(key, head, id, state, event, by)
  local before = head[STATE]
  head[STATE], head[VERSION], head[MORE] = state, head[VERSION] + 1, head[MORE] + EACH_VERSION
  local text = pack(head)
  local entry = format('[%.0f,"%s","%s","%s","%s",%.0f]', now, event, before, state, by, head[EPOCH])
  call('HSET', key, 'h', text, 'e' .. head[VERSION], entry)
  tell('job:' .. id)
  return text
end

-- Sort the ready jobs of format-1 processes into their types.
local function deal_out(queue)
  local old = call('ZPOPMIN', K .. 'r:' .. queue, DEALT)
  for place = 1, #old, 2 do
    local id = sub(old[place], ID_AT)
    local head = head_of(id)
    if head and head[STATE] == 'a' and ready_member(head, id) == old[place] then make_ready(head, id) end
    wrote = true
  end
  return #old / 2
end

-- scheduled, retryable → available; pending → available; and available jobs that had to wait for a time
local function promote(queue, most)
  local due = call('ZRANGEBYSCORE', TIMED[queue], '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(due) do
    local head = head_of(id)
    call('ZREM', TIMED[queue], id)
    if head and not expired(head, now) then
      if DUE[head[STATE]] then
        local event = 'promote'
        if head[STATE] == 'p' then event, head[RUN] = 'activate', moment_of(now) end
        head[WAITS] = false
        call('ZREM', INDEX[head[STATE]], id)
        call('ZADD', INDEX['a'], 0, id)
        count(head[STATE], queue, -1)
        count('a', queue, 1)
        write(job_key(id), head, id, 'a', event, 'time')
      end
      make_ready(head, id)
      tell('queue:' .. queue) -- the claiming worker may not know its type
    end
    wrote = true
  end
  return #due
end

-- The types to read: the known ones that have jobs in this queue.
local is_known = {}
for place = FIRST_TYPE, FIRST_QUEUE - 1 do is_known[ARGV[place]] = true end

local function kinds_of(queue)
  local kinds = {}
  for _, kind in ipairs(call('SMEMBERS', K .. 'y:' .. queue)) do
    if known < 0 or is_known[kind] then kinds[#kinds + 1] = kind end
  end
  return kinds
end

-- The types to merge: {key, how many of it were taken, its next jobs, our position in those}.
local AT_KEY, AT_TAKEN, AT_NEXT, AT_PLACE = 1, 2, 3, 4

local function fill(walk, size)
  walk[AT_NEXT], walk[AT_PLACE] = call('ZRANGE', walk[AT_KEY], walk[AT_TAKEN], walk[AT_TAKEN] + size - 1), 1
  return #walk[AT_NEXT] > 0
end

-- The first members of all types, in order. They start with fixed digits, which Lua compares as the server sorts them.
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

-- available → active
local function take(queue, most)
  local taken, looked = 0, 0
  local left_index, new_index, held, expiring = {}, {}, {}, {}
  local kinds = most > 0 and kinds_of(queue) or {}
  while taken < most and looked < 2 * page do
    local popped = pop_first(queue, kinds, most - taken)
    if #popped == 0 then break end
    looked = looked + #popped
    wrote = true
    for _, member in ipairs(popped) do
      local id = sub(member, ID_AT)
      local key = job_key(id)
      local got = call('HMGET', key, 'h', 'b', 'r', 'x')
      local head = got[1] and unpack_(got[1])
      if head and (head[STATE] ~= 'a' or ready_member(head, id) ~= member) then
        head = nil -- a format-1 process has changed it, and expected it in another index
      end
      if head and number_of(head[RUN]) > now then -- the clock was set back
        call('ZADD', TIMED[queue], number_of(head[RUN]), id)
      elseif head and not expired(head, now) then
        head[EPOCH], head[WORKER], head[CLAIMED] = head[EPOCH] + 1, worker, now
        taken = taken + 1
        left_index[taken], new_index[2 * taken - 1], new_index[2 * taken] = id, 0, id
        held[2 * taken - 1], held[2 * taken] = id, head[EPOCH]
        if head[EXPIRES] then expiring[#expiring + 1] = id end
        local text = write(key, head, id, 'o', 'claim', worker)
        answer[#answer + 1] = {id, text, got[2], got[3], got[4], signals_of(key, head)}
      end
    end
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

local function next_due(queue)
  local found = call('ZRANGEBYSCORE', TIMED[queue], '(' .. format('%.0f', now - 1000), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if found[2] and (not answer[3] or tonumber(found[2]) < tonumber(answer[3])) then answer[3] = found[2] end
end

for place = FIRST_QUEUE, #ARGV, 2 do
  local queue, may = ARGV[place], tonumber(ARGV[place + 1])
  if call('HEXISTS', K .. 'd', 'pause/' .. queue) == 0 then
    if deal_out(queue) == DEALT then
      answer[4] = (place - FIRST_QUEUE) / 2 + 1
      break
    end
    local promoted = may > 0 and promote(queue, math.min(may, page)) or 0
    if promoted == page and may > page then
      answer[4], answer[5] = (place - FIRST_QUEUE) / 2 + 1, promoted
      break
    end
    local taken, looked = take(queue, math.min(left, page))
    left = left - taken
    if looked >= page and left > 0 then
      answer[4], answer[5] = (place - FIRST_QUEUE) / 2 + 1, may
      break
    end
    if left <= 0 then break end
  end
  next_due(queue)
end
if wrote then
  count_act()
  answer[1] = seq
  write_counts()
end
return answer
