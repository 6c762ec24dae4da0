-- usage: keys. Answers {seq, {held, waiting, tokens, closed until, burst or false} for each}.
local permits = permits_at(time_now())
local answer = {seq}
for place = FIRST_ARG, #ARGV do answer[#answer + 1] = permits.usage(ARGV[place]) end
return answer
