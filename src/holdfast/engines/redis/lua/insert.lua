-- insert: each further argument is one order {parent or false, epoch, jobs}, all or none.
-- A job: {id, head, body, result, error, signals, digest, key_until, created_at}.
-- Returns, for each: {0} the parent's lease is over; {1, job's index, holder} its key is taken; {2, id, new, id, new
-- …}.
if moved then return moved end
local now = time_now()

local function key_name(head) return #head[TYPE] .. ':' .. head[TYPE] .. ':' .. head[KEY] end

local function holder_of(name, created_at)
  local text = call('GET', K .. 'k:' .. name)
  if not text then return nil end
  local key = unpack_(text)
  if key[3] and tonumber(key[3]) <= tonumber(created_at) then return nil end
  return key
end

local function take_key(name, key)
  call('SET', K .. 'k:' .. name, pack(key))
  call('ZADD', K .. 'ku', key[3] or '+inf', name)
end

local function insert(order)
  if order[1] then
    local head = head_of(order[1])
    if not head or head[STATE] ~= 'o' or head[EPOCH] ~= order[2] then return {0} end
  end
  local answer, fresh, seen, keys = {2}, {}, {}, {}
  for place, job in ipairs(order[3]) do
    local id, head = job[1], job[2]
    local stands, new = id, false
    if not seen[id] and call('EXISTS', job_key(id)) == 0 then
      local name = head[KEY] and key_name(head)
      local key = name and (keys[name] or holder_of(name, job[9]))
      if key then
        if key[2] ~= job[7] then return {1, place, key[1]} end
        stands = key[1]
      else
        if name then keys[name] = {id, job[7], job[8]} end
        seen[id], new = true, true
        fresh[#fresh + 1] = job
      end
    end
    answer[#answer + 1] = stands
    answer[#answer + 1] = new and 1 or 0
  end
  for name, key in pairs(keys) do take_key(name, key) end
  for _, job in ipairs(fresh) do add(job, now) end
  return answer
end

count_act()
local answers = {seq}
for place = FIRST_ARG, #ARGV do answers[#answers + 1] = insert(unpack_(ARGV[place])) end
write_counts()
write_order()
return answers
