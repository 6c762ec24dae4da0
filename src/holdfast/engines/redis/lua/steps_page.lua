-- steps_page: {job, the path to start after or '', how many}. Returns {seq, 1, path and record of each step …}, without the
-- result if that is easy to separate; {seq, 0} if the order is unknown; {seq, 2} if that path is gone.
local id, after, most = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], ARGV[FIRST_ARG + 2]
local head = head_of(id)
if head and not is_counted(head) then return {seq, 0} end
local from = '-'
if after ~= '' then
  local old = call('HGET', K .. 's:' .. id, after)
  if not old or is_own(after) then return {seq, 2} end
  from = '(' .. sub(old, 2, 13) .. after
end
local answer = {seq, 1}
for _, member in ipairs(call('ZRANGEBYLEX', K .. 'l:' .. id, from, '(~', 'LIMIT', 0, most)) do
  local path = sub(member, 13)
  local record = call('HGET', K .. 's:' .. id, path)
  local start = string.match(record, '^(.............%[[^,]*,"[^"\\]*",[^,]*,[^,]*,null,)')
  answer[#answer + 1] = path
  answer[#answer + 1] = start and start .. 'null]' or record
end
return answer
