-- Step records and their counters, for the scripts that write or count steps.

-- Whether the counters of a job's steps are right.
local function is_counted(head) return math.floor(head[MORE] / EACH_VERSION) == head[VERSION] end

local function is_own(path) return sub(path, 1, 1) == '~' end

-- The name in a step record, as JSON has it between the quotes; nothing where it can't be read.
local function name_of(record)
  local name = string.match(record, '^%[[^,]*,"([^"\\]*)"')
  if name then return name end
  local _, first = string.find(record, '^%[[^,]*,"')
  local place = first
  while place do
    place = string.find(record, '["\\]', place + 1)
    if not place then break end
    if sub(record, place, place) == '"' then return sub(record, first + 1, place - 1) end
    place = place + 1 -- what is escaped
  end
  return ''
end

-- What the steps of one call add to the counters, name by name as they came.
local steps_counted, all_counted = {}, {}
local function count_step(id, name, state, more)
  local whole_name = id .. '\0' .. name
  local counts = steps_counted[whole_name]
  if not counts then
    counts = {id = id, name = name, s = 0, d = 0, f = 0}
    steps_counted[whole_name], all_counted[#all_counted + 1] = counts, counts
  end
  counts[state] = counts[state] + more
end

local STEP_NAMES = 100 -- as in core/limits.py
local function write_step_counts()
  for _, counts in ipairs(all_counted) do
    local key, name = K .. 'm:' .. counts.id, counts.name
    if name ~= '' and call('HEXISTS', key, '=' .. name) == 0 then
      if tonumber(call('HGET', key, '=') or 0) < STEP_NAMES then
        call('HSET', key, '=' .. name, 1)
        call('HINCRBY', key, '=', 1)
      else
        name = ''
      end
    end
    for _, state in ipairs({'s', 'd', 'f'}) do
      if counts[state] ~= 0 then call('HINCRBY', key, state .. name, counts[state]) end
    end
  end
  steps_counted, all_counted = {}, {}
end

-- Keep a step record, unless one stands that is done or failed. Answers with that one. Who calls it writes the counts.
local function put_step(id, path, state, record, counts)
  local key = K .. 's:' .. id
  local old = call('HGET', key, path)
  local place
  if not old then
    place = format('%012x', call('HINCRBY', STORE, 'place', 1))
  elseif sub(old, 1, 1) == 's' then
    place = sub(old, 2, 13)
  else
    return old
  end
  call('HSET', key, path, state .. place .. record)
  if state == 'f' then call('SADD', K .. 'f:' .. id, path) end
  if not counts then return end
  if not old then call('ZADD', K .. 'l:' .. id, 0, is_own(path) and path or place .. path) end
  if not is_own(path) then
    if old then count_step(id, name_of(sub(old, 14)), 's', -1) end
    count_step(id, name_of(record), state, 1)
  end
end

-- Remove step records. Who calls it writes the counts.
local function drop_steps(id, paths, counts)
  for _, path in ipairs(paths) do
    local old = call('HGET', K .. 's:' .. id, path)
    if old then
      call('HDEL', K .. 's:' .. id, path)
      call('SREM', K .. 'f:' .. id, path)
      if counts then
        call('ZREM', K .. 'l:' .. id, is_own(path) and path or sub(old, 2, 13) .. path)
        if not is_own(path) then count_step(id, name_of(sub(old, 14)), sub(old, 1, 1), -1) end
      end
    end
  end
end

