-- Fairness: available jobs with a fair key, apart from the others (core/fairness.py). Names, beside those in store.lua:
--
--   fq:N:QUEUE:M:KEY:TYPE  ZSET  what can be claimed now of one type, without limits (an empty KEY) or behind a limit's key, all
--                        at score 0: rank, fair key, a zero byte, run_at, number and id as one text
--   fy:QUEUE       HASH  type → how many of its jobs are in these sets
--   ft             ZSET  the records of rounds (`fair/…`), by when a key of them last had its turn
--
-- A job with a fair key has it in its field f. It is not in the head, because processes of older formats read heads of a
-- fixed length. They know nothing of fair keys: what they make available lies in q: or lw:, and claims sort it in; what they
-- take away is still here, and claims pass over it.
local fair_keys = {} -- of the jobs that this call reads: id → fair key

local function fair_set(queue, key, kind) return K .. 'fq:' .. #queue .. ':' .. queue .. ':' .. #key .. ':' .. key .. ':' .. kind end

-- The types of a queue's jobs in these sets.
local function fair_kinds(queue)
  local kinds, counted = {}, call('HGETALL', K .. 'fy:' .. queue) -- HKEYS would be one more right for a user of the server
  for place = 1, #counted, 2 do kinds[#kinds + 1] = counted[place] end
  return kinds
end

local function fair_member(head, id)
  return head[RANK] .. fair_keys[id] .. '\0' .. head[RUN] .. format('%012x', head[NUMBER]) .. id
end

-- Whether it was not there yet.
local function enter_turns(head, id, key)
  local queue, kind = head[QUEUE], head[TYPE]
  if call('ZADD', fair_set(queue, key, kind), 0, fair_member(head, id)) == 0 then return false end
  call('HINCRBY', K .. 'fy:' .. queue, kind, 1)
  return true
end

-- Whether it was there.
local function leave_turns(queue, key, kind, member)
  if call('ZREM', fair_set(queue, key, kind), member) == 0 then return false end
  if call('HINCRBY', K .. 'fy:' .. queue, kind, -1) <= 0 then call('HDEL', K .. 'fy:' .. queue, kind) end
  return true
end
