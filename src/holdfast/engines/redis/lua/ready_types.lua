-- ready_types: {queue}. Returns {seq, types …} that have jobs to claim.
local answer = {seq}
for _, kind in ipairs(call('SMEMBERS', K .. 'y:' .. ARGV[FIRST_ARG])) do answer[#answer + 1] = kind end
return answer
