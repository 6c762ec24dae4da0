-- expired: {until when, after, newest, how many to find, how many to read, states or '', has queue, queue, has type,
-- type, has parent, parent}. Lists expired jobs, by id. Returns {seq, where to continue or false, jobs …}.
--
-- `x` is sorted by time, so it starts with the expired jobs. They are copied to `xi`, which is sorted by id: a page per call,
-- each job once. The listing starts when all of them are there; until then no job is returned, and the caller continues from
-- where it was.
local limit, after, newest = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], ARGV[FIRST_ARG + 2] == '1'
local most, page, states = tonumber(ARGV[FIRST_ARG + 3]), tonumber(ARGV[FIRST_ARG + 4]), ARGV[FIRST_ARG + 5]
local queue = ARGV[FIRST_ARG + 6] == '1' and ARGV[FIRST_ARG + 7]
local kind = ARGV[FIRST_ARG + 8] == '1' and ARGV[FIRST_ARG + 9]
local parent = ARGV[FIRST_ARG + 10] == '1' and ARGV[FIRST_ARG + 11]

local over = call('ZRANGEBYSCORE', K .. 'x', '-inf', limit, 'LIMIT', 0, page)
if #over > 0 then
  local entries = {}
  for place, id in ipairs(over) do entries[2 * place - 1], entries[2 * place] = 0, id end
  call('ZADD', K .. 'xi', unpack(entries))
  call('ZREM', K .. 'x', unpack(over))
end
if #over == page then return {seq, after} end

local ids
if newest then
  ids = call('ZREVRANGEBYLEX', K .. 'xi', after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, page)
else
  ids = call('ZRANGEBYLEX', K .. 'xi', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, page)
end
local answer = {seq, false}
for _, id in ipairs(ids) do
  local text = call('HGET', job_key(id), 'h')
  local head = text and unpack_(text)
  if head and expired(head, tonumber(limit)) and (states == '' or string.find(states, head[STATE], 1, true))
    and (not queue or head[QUEUE] == queue) and (not kind or head[TYPE] == kind)
    and (not parent or head[PARENT] == parent) then
    answer[#answer + 1] = whole(id, text, head)
    most = most - 1
    if most == 0 then answer[2] = id; return answer end
  end
end
if #ids == page then answer[2] = ids[page] end
return answer
