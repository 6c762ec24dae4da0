-- record: five arguments for each step: job, epoch, path, state, record.
-- Answers, for each: 1 it stands; {2, the one that stands}; {0, why, state, version, epoch} as in commit.
if moved then return moved end
local heads = {}
local answers = {seq}
local wrote = false

local function record(id, epoch, path, state, step)
  local head = heads[id]
  if head == nil then
    head = head_of(id)
    heads[id] = head
  end
  if not head then return {0, 1} end
  if head[EPOCH] ~= tonumber(epoch) or head[STATE] ~= 'o' then return {0, 2, head[STATE], head[VERSION], head[EPOCH]} end
  local standing = put_step(id, path, state, step)
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
  count_act()
  answers[1] = seq
end
return answers
