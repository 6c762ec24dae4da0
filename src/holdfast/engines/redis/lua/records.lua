-- records: {prefix, the last name of the previous page or '', how many}. Returns {seq, name, highest version so far,
-- record …}.
local prefix, after, most = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], tonumber(ARGV[FIRST_ARG + 2])
local from = after == '' and '[' .. prefix or '(' .. after
local answer = {seq}
for _, name in ipairs(call('ZRANGEBYLEX', K .. 'dn', from, '[' .. prefix .. '\255', 'LIMIT', 0, most)) do
  answer[#answer + 1] = name
  answer[#answer + 1] = call('HGET', K .. 'dv', name)
  answer[#answer + 1] = call('HGET', K .. 'd', name)
end
return answer
