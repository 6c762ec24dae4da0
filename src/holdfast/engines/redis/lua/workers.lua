-- The workers' statuses: {seq, now, generation, worker, heartbeat …}.
local answer = {seq, time_now(), door[2]}
for _, text in ipairs(call('HGETALL', K .. 'w')) do answer[#answer + 1] = text end
return answer
