-- steps_under: {prefix of the paths, a state or '', jobs …}. Returns {seq, {path and record of each step …} for each
-- job}.
local prefix, state = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1]

-- Our own records are few and sorted.
local function own_records(id)
  local found = {}
  for _, path in ipairs(call('ZRANGEBYLEX', K .. 'l:' .. id, '[' .. prefix, '[' .. prefix .. '\255')) do
    found[#found + 1] = path
    found[#found + 1] = call('HGET', K .. 's:' .. id, path)
  end
  return found
end

local answer = {seq}
for place = FIRST_ARG + 2, #ARGV do
  local id, found = ARGV[place], {}
  local head = is_own(prefix) and head_of(id)
  local records = head and is_counted(head) and own_records(id) or call('HGETALL', K .. 's:' .. id)
  for nth = 1, #records, 2 do
    local path, record = records[nth], records[nth + 1]
    if sub(path, 1, #prefix) == prefix and (state == '' or sub(record, 1, 1) == state) then
      found[#found + 1] = path
      found[#found + 1] = record
    end
  end
  answer[#answer + 1] = found
end
return answer
