-- record: five arguments for each step: job, epoch, path, state, record.
-- Answers, for each: 1 it stands; {2, the one that stands}; {0, why, state, version, epoch} as in commit.
if moved then return moved end
local answers = {seq}
for place = FIRST_ARG, #ARGV, 5 do
  answers[#answers + 1] = record(ARGV[place], ARGV[place + 1], ARGV[place + 2], ARGV[place + 3], ARGV[place + 4])
end
if wrote then
  write_step_counts()
  count_act()
  answers[1] = seq
end
return answers
