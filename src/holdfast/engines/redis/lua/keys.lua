-- keys: {the last name of the previous page or '', how many}. Returns {seq, whether that one exists, name, key …}.
local after, most = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1])
local start = 0
if after ~= '' then
  local rank = call('ZRANK', K .. 'ku', after)
  if not rank then return {seq, 0} end
  start = rank + 1
end
local answer = {seq, 1}
for _, name in ipairs(call('ZRANGE', K .. 'ku', start, start + most - 1)) do
  answer[#answer + 1] = name
  answer[#answer + 1] = call('GET', K .. 'k:' .. name)
end
return answer
