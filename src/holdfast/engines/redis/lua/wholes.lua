-- wholes: {how many entries and steps one call reads, ids …}. Returns {seq, the content of each …}, for fewer jobs than
-- requested if it would be too much: {{head, body, first entry or false, entry …}, {path, step …}}, {} for a job that
-- doesn't exist, and 0 for one that is too large by itself.
local left = tonumber(ARGV[FIRST_ARG])
local all = left
local answer = {seq}
for place = FIRST_ARG + 1, #ARGV do
  local id = ARGV[place]
  local head = head_of(id)
  local size = head and head[VERSION] + call('HLEN', K .. 's:' .. id) or 0
  if size > all then
    answer[#answer + 1] = 0
  elseif size > left then
    return answer
  elseif not head then
    answer[#answer + 1] = {}
  else
    left = left - size
    local names = {'h', 'b'}
    for version = 1, head[VERSION] do names[version + 2] = 'e' .. version end
    answer[#answer + 1] = {call('HMGET', job_key(id), unpack(names)), call('HGETALL', K .. 's:' .. id)}
  end
end
return answer
