-- get: ids. Returns {seq, job or false …}.
local answer = {seq}
for place = FIRST_ARG, #ARGV do
  local text = call('HGET', job_key(ARGV[place]), 'h')
  answer[#answer + 1] = text and whole(ARGV[place], text, unpack_(text))
end
return answer
