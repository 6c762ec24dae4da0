-- in_order: {the last id of the previous page or '', how many}. Returns {seq, whether that job exists, jobs …}.
local after, most = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1])
local bucket, passed = '-inf', after == ''
if not passed then
  local head = head_of(after)
  if not head then return {seq, 0} end
  bucket = bucket_of(head[NUMBER])
end
local answer = {seq, 1}
-- One list more than a page needs: all of the first one may come before the page.
for _, name in ipairs(call('ZRANGEBYSCORE', K .. 'o', bucket, '+inf', 'LIMIT', 0, most + 1)) do
  for _, id in ipairs(call('LRANGE', K .. 'o:' .. name, 0, -1)) do
    if passed then
      local text = call('HGET', job_key(id), 'h')
      answer[#answer + 1] = whole(id, text, unpack_(text))
      most = most - 1
      if most == 0 then return answer end
    end
    passed = passed or id == after
  end
end
return answer
