-- prune: {how many at most, how many of anything to read}. The caller repeats it while there is something to do.
-- Returns {seq, how many were removed, whether anything was done}.
if moved then return moved end
local most, page = tonumber(ARGV[FIRST_ARG]), tonumber(ARGV[FIRST_ARG + 1])
local BUCKET_KEPT_MS, TURN_KEPT_MS = 3600000, 86400000
local now = time_now()
local gone, done = 0, 0
local has_budgets = call('HEXISTS', K .. 'd', 'limit/~budget') == 1

-- Jobs that were kept because of a parent that has ended by now.
local function look_again()
  local parent = call('LINDEX', K .. 'u', 0)
  if not parent then return end
  local kept = call('SPOP', K .. 'b:' .. parent, page)
  for _, id in ipairs(kept) do
    local head = head_of(id)
    if head and head[PRUNE] then call('ZADD', K .. 'p', head[PRUNE], prune_member(head, id)) end
  end
  if #kept < page then call('LPOP', K .. 'u') end
  done = done + 1
end

-- Collect what to remove, and remove it with a few calls: a call costs more than what it does.
local keys, buckets, left = {}, {}, {}

local LAST = {c = 'completed', d = 'discarded', k = 'cancelled'}

-- The unique name of a job is free again, or stays with the job's last state while its window is open.
local function bury(name, head, id)
  local text = call('GET', K .. 'k:' .. name)
  local key = text and unpack_(text)
  if not key or key[1] ~= id then return end
  if key[3] and tonumber(key[3]) > now then
    key[2] = key[2] .. ' ' .. LAST[head[STATE]]
    call('SET', K .. 'k:' .. name, pack(key))
  else
    call('DEL', K .. 'k:' .. name)
    call('ZREM', K .. 'ku', name)
  end
end

local function remove(head, id, name)
  keys[#keys + 1] = job_key(id)
  keys[#keys + 1] = K .. 's:' .. id
  keys[#keys + 1] = K .. 'f:' .. id
  keys[#keys + 1] = K .. 'g:' .. id
  keys[#keys + 1] = K .. 'm:' .. id
  keys[#keys + 1] = K .. 'l:' .. id
  keys[#keys + 1] = K .. 'lj:' .. id
  local ids = left[head[STATE]] or {}
  ids[#ids + 1] = id
  left[head[STATE]] = ids
  count(head[STATE], head[QUEUE], -1)
  local bucket = bucket_of(head[NUMBER])
  call('LREM', K .. 'o:' .. bucket, 1, id)
  buckets[bucket] = true
  if head[PARENT] then call('ZREM', K .. 'c:' .. head[PARENT], id) end
  if head[KEY] then
    local name = #head[TYPE] .. ':' .. head[TYPE] .. ':' .. head[KEY]
    local text = call('GET', K .. 'k:' .. name)
    local key = text and unpack_(text)
    if key and key[1] == id and not (key[3] and tonumber(key[3]) > now) then
      call('DEL', K .. 'k:' .. name)
      call('ZREM', K .. 'ku', name)
    end
  end
  if name then bury(name, head, id) end
  if has_budgets then
    for _, name in ipairs({'budget/' .. id, 'bucket/~budget/' .. id .. '/usd', 'bucket/~budget/' .. id .. '/tokens'}) do
      if call('HDEL', K .. 'd', name) + call('HDEL', K .. 'dv', name) > 0 then
        call('ZREM', K .. 'dn', name)
        call('ZREM', K .. 'lb', sub(name, 8))
      end
    end
  end
  gone = gone + 1
end

local function clear()
  if #keys > 0 then call('UNLINK', unpack(keys)) end
  for state, ids in pairs(left) do call('ZREM', INDEX[state], unpack(ids)) end
  for bucket in pairs(buckets) do
    if call('EXISTS', K .. 'o:' .. bucket) == 0 then call('ZREM', K .. 'o', bucket) end
  end
end

local function prune()
  local members = call('ZRANGEBYSCORE', K .. 'p', '-inf', now, 'LIMIT', 0, math.min(page, most))
  if #members == 0 then return end
  call('ZREM', K .. 'p', unpack(members))
  for _, member in ipairs(members) do
    local id = sub(member, 13)
    local got = call('HMGET', job_key(id), 'h', 'q')
    local head = got[1] and unpack_(got[1])
    done = done + 1
    if head and ENDED[head[STATE]] then
      local above = head[PARENT] and head_of(head[PARENT])
      if above and not ENDED[above[STATE]] then
        call('SADD', K .. 'b:' .. head[PARENT], id)
      elseif tonumber(call('HGET', K .. 'g:' .. id, 'l') or 0) <= 0 then -- otherwise its last child puts it back
        remove(head, id, got[2])
      end
    end
  end
  clear()
end

local function forget_keys()
  for _, name in ipairs(call('ZRANGEBYSCORE', K .. 'ku', '-inf', now, 'LIMIT', 0, page)) do
    call('DEL', K .. 'k:' .. name)
    call('ZREM', K .. 'ku', name)
    done = done + 1
  end
end

-- Buckets that nobody has used for an hour, and that are full by now: a key without one starts full.
local function forget_buckets()
  local before = now - BUCKET_KEPT_MS
  local permits
  for _, key in ipairs(call('ZRANGEBYSCORE', K .. 'lb', '-inf', '(' .. format('%.0f', before), 'LIMIT', 0, page)) do
    permits = permits or permits_at(now)
    if permits.needs_no_bucket(key, before) then
      call('HDEL', K .. 'd', 'bucket/' .. key)
      call('HDEL', K .. 'dv', 'bucket/' .. key)
      call('ZREM', K .. 'dn', 'bucket/' .. key)
      call('ZREM', K .. 'lb', key)
    else
      call('ZADD', K .. 'lb', now, key)
    end
    done = done + 1
  end
end

-- Rounds of fair keys that nobody has continued for a day.
local function forget_turns()
  for _, name in ipairs(call('ZRANGEBYSCORE', K .. 'ft', '-inf', '(' .. format('%.0f', now - TURN_KEPT_MS), 'LIMIT', 0, page)) do
    call('HDEL', K .. 'd', name)
    call('HDEL', K .. 'dv', name)
    call('ZREM', K .. 'dn', name)
    call('ZREM', K .. 'ft', name)
    done = done + 1
  end
end

if most > 0 then
  look_again()
  prune()
end
forget_keys()
forget_buckets()
forget_turns()
if done > 0 then
  count_act()
  write_counts()
end
return {seq, gone, done}
