-- ready_types: {queue}. Answers {seq, types …} of which something can be claimed, or could with a permit.
local answer = {seq}
for _, kind in ipairs(call('SMEMBERS', K .. 'y:' .. ARGV[FIRST_ARG])) do answer[#answer + 1] = kind end
local limited = call('HGETALL', K .. 'lc:' .. ARGV[FIRST_ARG])
for place = 1, #limited, 2 do answer[#answer + 1] = limited[place] end
for _, kind in ipairs(fair_kinds(ARGV[FIRST_ARG])) do answer[#answer + 1] = kind end
return answer
