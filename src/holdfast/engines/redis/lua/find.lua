-- find: {after, newest, how many to find, how many to read, states or '', has queue, queue, has type, type, indexes …}.
-- Merges the given indexes, by id. Returns {seq, where to continue or false, jobs …}.
local after, newest = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1] == '1'
local most, page, states = tonumber(ARGV[FIRST_ARG + 2]), tonumber(ARGV[FIRST_ARG + 3]), ARGV[FIRST_ARG + 4]
local queue = ARGV[FIRST_ARG + 5] == '1' and ARGV[FIRST_ARG + 6]
local kind = ARGV[FIRST_ARG + 7] == '1' and ARGV[FIRST_ARG + 8]

-- Compares bytes, as the indexes are sorted: Lua's own comparison uses the server's locale.
local function before(one, other)
  for place = 1, math.min(#one, #other) do
    local a, b = string.byte(one, place), string.byte(other, place)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local walks = {}
for place = FIRST_ARG + 9, #ARGV do
  local ids
  if newest then
    ids = call('ZREVRANGEBYLEX', K .. ARGV[place], after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, page)
  else
    ids = call('ZRANGEBYLEX', K .. ARGV[place], after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, page)
  end
  if #ids > 0 then walks[#walks + 1] = {1, ids} end
end

local function next_id()
  local best
  for _, walk in ipairs(walks) do
    local id = walk[2][walk[1]]
    if id and (not best or before(id, best[2][best[1]]) ~= newest) then best = walk end
  end
  if not best then return nil end
  best[1] = best[1] + 1
  return best[2][best[1] - 1]
end

local answer = {seq, false}
for _ = 1, page do
  local id = next_id()
  if not id then answer[2] = false; return answer end
  local text = call('HGET', job_key(id), 'h')
  local head = text and unpack_(text)
  if head and (states == '' or string.find(states, head[STATE], 1, true))
    and (not queue or head[QUEUE] == queue) and (not kind or head[TYPE] == kind) then
    answer[#answer + 1] = whole(id, text, head)
    most = most - 1
    if most == 0 then answer[2] = id; return answer end
  end
  answer[2] = id
end
return answer
