-- Recording steps, for the scripts that do: each under its job's lease.

local RECOUNTED = 500 -- of a job with more records than this, the steps are counted only when somebody asks
local heads, recounted = {}, {}
local wrote = false

-- A process of format 2 has had this job: count all its steps again.
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

-- Why nothing may be written under this lease: {0, why, state, version, epoch} as in commit; nothing if it is current.
local function refusal(head, epoch)
  if not head then return {0, 1} end
  if head[EPOCH] ~= tonumber(epoch) or head[STATE] ~= 'o' then return {0, 2, head[STATE], head[VERSION], head[EPOCH]} end
end

-- Answers 1: it stands; {2, the one that stands}; or why it is refused.
local function record(id, epoch, path, state, step)
  local head = heads[id]
  if head == nil then
    head = head_of(id)
    heads[id] = head
  end
  local refused = refusal(head, epoch)
  if refused then return refused end
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

