-- insert: each further argument is one order {parent or false, epoch, jobs}, all or none.
-- A job: {id, head, body, result, error, signals, digest, key_until, created_at, uses, unique}; for uses, see limits.lua;
-- unique is false, or {name, stamp, until, whether to refuse}.
-- Answers, for each: {0} the parent's lease is over; {1, job's place, holder} its key or name is taken; {2, id, new, id, new …}.
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

local NAMES = {
  s = 'scheduled', a = 'available', p = 'pending', o = 'active', r = 'retryable', v = 'review', c = 'completed',
  d = 'discarded', k = 'cancelled',
}

-- Whether the one who holds a unique name counts for a new job: core.unique.counts. `head`: the holder's, if it is there.
local function counts(key, head, job)
  local window, states = string.match(job[11][2], '^%S+ (%S+) (%S+)')
  local created_at, last = string.match(key[2], '^(%S+) %S+ %S+ ?(%S*)')
  window, states = tonumber(window), ',' .. states .. ','
  if window > 0 and tonumber(created_at) + window <= tonumber(job[9]) then return false end
  local function is_wanted(state) return string.find(states, ',' .. state .. ',', 1, true) end
  if head then return is_wanted(NAMES[head[STATE]]) end
  if not key[3] then return false end
  if last ~= '' then return is_wanted(last) end
  return is_wanted('completed') or is_wanted('discarded') or is_wanted('cancelled')
end

local function insert(order)
  if order[1] then
    local head = head_of(order[1])
    if not head or head[STATE] ~= 'o' or head[EPOCH] ~= order[2] then return {0} end
  end
  local answer, fresh, seen, keys = {2}, {}, {}, {}
  local function same_as(job)
    local key = keys[job[11][1]] or holder_of(job[11][1], job[9])
    return key and counts(key, seen[key[1]] or head_of(key[1]), job) and key
  end
  for place, job in ipairs(order[3]) do
    local id, head = job[1], job[2]
    local stands, new = id, false
    if not seen[id] and call('EXISTS', job_key(id)) == 0 then
      local unique = job[11]
      local name = unique and unique[1] or head[KEY] and key_name(head)
      local key
      if unique then key = same_as(job) elseif name then key = keys[name] or holder_of(name, job[9]) end
      if key then
        if unique and unique[4] or not unique and key[2] ~= job[7] then return {1, place, key[1]} end
        stands = key[1]
      else
        if name then keys[name] = unique and {id, unique[2], unique[3]} or {id, job[7], job[8]} end
        seen[id], new = head, true
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
