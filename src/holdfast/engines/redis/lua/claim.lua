-- claim: {worker, how many, page, then for each queue its name and how many of it may still be promoted}.
-- Looks at no more than a page of due jobs, and takes no more than a page, in one call. When there may be more, it says
-- in which queue, and the caller goes on there.
-- Answers {seq, now, next due or false, the queue to go on with or 0, how many were promoted there, jobs …}.
local worker, left, page = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local FIRST_QUEUE = FIRST_ARG + 3
local now = time_now()
local answer = {seq, now, false, 0, 0}
local wrote = false

local function move(head, id, state, event, by)
  call('ZREM', K .. 'i:' .. head[STATE], id)
  call('ZADD', K .. 'i:' .. state, 0, id)
  count(head[STATE], head[QUEUE], -1)
  count(state, head[QUEUE], 1)
  local before = head[STATE]
  head[STATE], head[VERSION] = state, head[VERSION] + 1
  local text = pack(head)
  call('HSET', job_key(id), 'h', text, 'e' .. head[VERSION], format('[%.0f,"%s","%s","%s","%s",%.0f]', now, event, before, state, by, head[EPOCH]))
  tell('job:' .. id)
  wrote = true
  return text
end

-- scheduled, retryable → available; pending → available; and what was available, but not yet
local function promote(queue, most)
  local due = call('ZRANGEBYSCORE', K .. 't:' .. queue, '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(due) do
    local head = head_of(id)
    call('ZREM', K .. 't:' .. queue, id)
    if head and not expired(head, now) then
      if DUE[head[STATE]] then
        local event = 'promote'
        if head[STATE] == 'p' then event, head[RUN] = 'activate', moment_of(now) end
        head[WAITS] = false
        move(head, id, 'a', event, 'time')
      end
      call('ZADD', K .. 'r:' .. queue, 0, ready_member(head, id))
    end
    wrote = true
  end
  return #due
end

-- available → active
local function take(queue, most)
  local taken, looked = 0, 0
  while taken < most and looked < 2 * page do
    local popped = call('ZPOPMIN', K .. 'r:' .. queue, most - taken)
    if #popped == 0 then break end
    looked = looked + #popped / 2
    for place = 1, #popped, 2 do
      local id = sub(popped[place], ID_AT)
      local head = head_of(id)
      if head and not expired(head, now) then
        if head[EXPIRES] then call('ZREM', K .. 'x', id) end
        head[EPOCH], head[WORKER], head[CLAIMED] = head[EPOCH] + 1, worker, now
        call('HSET', K .. 'h:' .. worker, id, head[EPOCH])
        answer[#answer + 1] = whole(id, move(head, id, 'o', 'claim', worker), head)
        taken = taken + 1
      end
      wrote = true
    end
  end
  return taken, looked
end

local function next_due(queue)
  local found = call('ZRANGEBYSCORE', K .. 't:' .. queue, '(' .. format('%.0f', now - 1000), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if found[2] and (not answer[3] or tonumber(found[2]) < tonumber(answer[3])) then answer[3] = found[2] end
end

for place = FIRST_QUEUE, #ARGV, 2 do
  local queue, may = ARGV[place], tonumber(ARGV[place + 1])
  if call('HEXISTS', K .. 'd', 'pause/' .. queue) == 0 then
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
