-- admit: each further argument is one order {steps, asks}. A step: {job, epoch, path, state, record}. An ask: {job, epoch,
-- path, try, uses, settles}, these with key and units in turn; without uses, the step's permits end.
-- Answers, for each: {what record answers for each step, for each ask: 1 it has its permits; {2, key that has no room, when it
-- may have some or false}; {0, why, state, version, epoch} as in commit}.
if moved then return moved end
local permits = permits_at(time_now())

local function admit(id, epoch, path, try, uses, settles)
  local head = heads[id]
  if head == nil then
    head = head_of(id)
    heads[id] = head
  end
  local refused = refusal(head, epoch)
  if refused then return refused end
  local block = permits.admit(id, head[EPOCH], path, try, uses, settles)
  return block and {2, block[1], block[2]} or 1
end

count_act()
local answers = {seq}
for place = FIRST_ARG, #ARGV do
  local order = unpack_(ARGV[place])
  local recorded, admitted = {}, {}
  for nth, step in ipairs(order[1]) do recorded[nth] = record(unpack(step)) end
  for nth, ask in ipairs(order[2]) do admitted[nth] = admit(unpack(ask)) end
  answers[#answers + 1] = {recorded, admitted}
end
permits.finish()
write_step_counts()
return answers
