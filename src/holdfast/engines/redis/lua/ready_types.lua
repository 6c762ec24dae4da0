-- ready_types: {queue, how many}. Answers {seq, types …} of which something can be claimed.
local queue = ARGV[FIRST_ARG]
local answer = {seq}
for _, kind in ipairs(call('SRANDMEMBER', K .. 'y:' .. queue, ARGV[FIRST_ARG + 1])) do
  if call('EXISTS', ready_key(queue, kind)) == 1 then answer[#answer + 1] = kind end
end
return answer
