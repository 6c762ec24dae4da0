-- ready_types: {queue}. Answers {seq, types …} of which something can be claimed.
local answer = {seq}
for _, kind in ipairs(call('SMEMBERS', K .. 'y:' .. ARGV[FIRST_ARG])) do answer[#answer + 1] = kind end
return answer
