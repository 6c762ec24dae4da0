-- record: five arguments for each step: job, epoch, path, state, record.
-- Returns, for each: 1 it is stored; {2, the existing record}; {0, reason, state, version, epoch} as in commit.
if moved then return moved end
local RECOUNTED = 500 -- the steps of a job with more records than this are counted only on request
local heads, recounted = {}, {}
local answers = {seq}
local wrote = false

-- A format-2 process has written to this job: count all its steps again.
local function recount(id, head)
  if call('HLEN', K .. 's:' .. id) > RECOUNTED then return end
  call('UNLINK', K .. 'm:' .. id, K .. 'l:' .. id)
  local found, steps = call('HGETALL', K .. 's:' .. id), {}
  for place = 1, #found, 2 do
    local path, step = found[place], found[place + 1]
    call('ZADD', K .. 'l:' .. id, 0, is_own(path) and path or sub(step, 2, 13) .. path)
    if not is_own(path) then steps[#steps + 1] = step end
  end
  table.sort(steps, function(one, other) return sub(one, 2, 13) < sub(other, 2, 13) end)
  for _, step in ipairs(steps) do count_step(id, name_of(sub(step, 14)), sub(step, 1, 1), 1) end
  write_step_counts()
  head[MORE] = head[MORE] % EACH_VERSION + EACH_VERSION * head[VERSION]
  call('HSET', job_key(id), 'h', pack(head))
end

local function record(id, epoch, path, state, step)
  local head = heads[id]
  if head == nil then
    head = head_of(id)
    heads[id] = head
  end
  if not head then return {0, 1} end
  if head[EPOCH] ~= tonumber(epoch) or head[STATE] ~= 'o' then return {0, 2, head[STATE], head[VERSION], head[EPOCH]} end
  if not is_counted(head) and not recounted[id] then
    recounted[id] = true
    write_step_counts()
    recount(id, head)
  end
  local standing = put_step(id, path, state, step, is_counted(head))
  if not standing then
    wrote = true
    return 1
  end
  if sub(standing, 1, 1) == state and sub(standing, 14) == step then return 1 end
  return {2, standing}
end

for place = FIRST_ARG, #ARGV, 5 do
  answers[#answers + 1] = record(ARGV[place], ARGV[place + 1], ARGV[place + 2], ARGV[place + 3], ARGV[place + 4])
end
if wrote then
  write_step_counts()
  count_act()
  answers[1] = seq
end
return answers
