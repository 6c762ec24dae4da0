-- summaries: ids. Returns {seq, the counters of each …}: {last path or '', field and number of each counter …}, 0 for a job
-- whose counters aren't valid, and {''} for one that doesn't exist.
local answer = {seq}
for place = FIRST_ARG, #ARGV do
  local id = ARGV[place]
  local head = head_of(id)
  if head and not is_counted(head) then
    answer[#answer + 1] = 0
  else
    local last = call('ZREVRANGEBYLEX', K .. 'l:' .. id, '(~', '-', 'LIMIT', 0, 1)[1]
    local found = {last and sub(last, 13) or ''}
    for _, word in ipairs(call('HGETALL', K .. 'm:' .. id)) do found[#found + 1] = word end
    answer[#answer + 1] = found
  end
end
return answer
