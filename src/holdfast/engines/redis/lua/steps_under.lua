-- steps_under: {job, what the paths begin with}. Answers {seq, path and record of each step …}.
local id, prefix = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1]
local answer = {seq}
for _, path in ipairs(call('HKEYS', K .. 's:' .. id)) do
  if string.sub(path, 1, #prefix) == prefix then
    answer[#answer + 1] = path
    answer[#answer + 1] = call('HGET', K .. 's:' .. id, path)
  end
end
return answer
