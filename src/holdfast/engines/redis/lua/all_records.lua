-- all_records: {cursor, about how many}. Returns {seq, next cursor, name, highest version so far, record or false …}.
local found = call('HSCAN', K .. 'dv', ARGV[FIRST_ARG], 'COUNT', ARGV[FIRST_ARG + 1])
local answer = {seq, found[1]}
for place = 1, #found[2], 2 do
  answer[#answer + 1] = found[2][place]
  answer[#answer + 1] = found[2][place + 1]
  answer[#answer + 1] = call('HGET', K .. 'd', found[2][place])
end
return answer
