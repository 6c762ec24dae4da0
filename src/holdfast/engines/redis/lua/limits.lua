-- Shared limits: the jobs that wait for a permit, and the keys that claims have to look at. A key is that of a limit's counter
-- (core/shared_limits.py). Who gets a permit is in permits.lua. Names, beside those in store.lua:
--
--   lw:N:QUEUE:M:KEY:TYPE  ZSET  available jobs of one type that wait behind a key, as q:N:QUEUE:TYPE has those without limits
--   ly:N:QUEUE:KEY SET   the types of these
--   lz:N:QUEUE:KEY ZSET  pending jobs whose steps wait for a permit, all at score 0: number and id
--   lt:KEY         HASH  available jobs behind a key that wait for their time, or have expired: id → ''
--   lq:KEY         HASH  queue → how many of its jobs are in its lw: and lz: sets
--   lc:QUEUE       HASH  type → how many of its jobs are in the queue's lw: sets
--   lk:LIMIT       ZSET  the keys of a limit that have waiting jobs or permits, all at score 0
--   lr:QUEUE       ZSET  rechecks: the keys that claims must look at, by time. Below zero: a claim has looked and there is
--                        room, but for jobs of other types; by the time when it looked
--   lp:KEY         HASH  the permits of a key: job and path → epoch; of one that is kept for a job: 'r'
--   lv:KEY         ZSET  the jobs for which a permit is kept, by its end
--   lj:ID          HASH  the permits of a job: path → {{key, epoch, try} …}
--   lb             ZSET  the keys that have a bucket (the record `bucket/KEY`), by when to look whether it is full
--
-- A job with limits has a field u: {the key behind which it waits, key, units, key, units …}. It is not in the head, because
-- processes of format 3 read heads of a fixed length. They know nothing of limits: what they make available lies in q:, and
-- claims sort it in; what they take away is still here, and claims pass over it.
--
-- All of it is made by the first who needs it: most calls need no limits, and each function costs a call a little.

-- Whether a pending job may wait for a permit: at a glance.
local function waits_for_limit(head) return head[WAITS] and string.find(head[WAITS], '"limit"', 1, true) end

local limits_of_call
local function shared_limits()
  if limits_of_call then return limits_of_call end
  local limits = {}
  limits_of_call = limits

  function limits.limit_of(key) return string.match(key, '^[^/]*') end

  function limits.note_key(key) call('ZADD', K .. 'lk:' .. limits.limit_of(key), 0, key) end

  function limits.forget_key(key)
    if call('EXISTS', K .. 'lq:' .. key, K .. 'lt:' .. key, K .. 'lp:' .. key) == 0 then
      call('ZREM', K .. 'lk:' .. limits.limit_of(key), key)
    end
  end

  -- Let claims of a queue look at a key from this time on, or sooner if they would anyway.
  function limits.look_at(queue, key, at)
    call('ZADD', K .. 'lr:' .. queue, 'LT', math.max(at, 0), key)
    tell('queue:' .. queue)
  end

  -- Let claims look at a key in every queue where jobs wait behind it, and wake the steps that wait.
  function limits.recheck(key, at)
    local queues = call('HGETALL', K .. 'lq:' .. key)
    for place = 1, #queues, 2 do limits.look_at(queues[place], key, at) end
    tell('limit:' .. key)
    if string.find(key, '^~budget/[^/]*/[^/]*$') then -- jobs wait behind keys that say what they need of it
      for _, behind in ipairs(call('ZRANGEBYLEX', K .. 'lk:~budget', '(' .. key .. '/', '(' .. key .. '0')) do limits.recheck(behind, at) end
    end
  end

  -- The same for a page of the keys of a limit, which has changed. Answers where to continue, or false.
  function limits.recheck_page(limit, after, most)
    local keys = call('ZRANGEBYLEX', K .. 'lk:' .. limit, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most)
    for _, key in ipairs(keys) do limits.recheck(key, 0) end
    return #keys == most and keys[most]
  end

  function limits.count_waiting(queue, key, more)
    local number = call('HINCRBY', K .. 'lq:' .. key, queue, more)
    if number <= 0 then
      call('HDEL', K .. 'lq:' .. key, queue)
      limits.forget_key(key)
    elseif number == more then
      limits.note_key(key)
    end
  end

  function limits.waiting_key(queue, key, kind) return K .. 'lw:' .. #queue .. ':' .. queue .. ':' .. #key .. ':' .. key .. ':' .. kind end
  function limits.waiting_kinds(queue, key) return K .. 'ly:' .. #queue .. ':' .. queue .. ':' .. key end
  function limits.parked_key(queue, key) return K .. 'lz:' .. #queue .. ':' .. queue .. ':' .. key end

  function limits.wait_behind(head, id, key)
    local queue, kind = head[QUEUE], head[TYPE]
    local is_new
    if fair_keys[id] then
      is_new = enter_turns(head, id, key)
    else
      is_new = call('ZADD', limits.waiting_key(queue, key, kind), 0, ready_member(head, id)) == 1
    end
    if is_new then
      call('SADD', limits.waiting_kinds(queue, key), kind)
      call('HINCRBY', K .. 'lc:' .. queue, kind, 1)
      limits.count_waiting(queue, key, 1)
    end
  end

  -- Whether it was there. `is_fair`: among those with fair keys.
  function limits.stop_waiting(queue, key, kind, member, is_fair)
    local set = limits.waiting_key(queue, key, kind)
    if is_fair then
      if not leave_turns(queue, key, kind, member) then return false end
    elseif call('ZREM', set, member) == 0 then
      return false
    end
    if call('EXISTS', set, fair_set(queue, key, kind)) == 0 then call('SREM', limits.waiting_kinds(queue, key), kind) end
    if call('HINCRBY', K .. 'lc:' .. queue, kind, -1) <= 0 then call('HDEL', K .. 'lc:' .. queue, kind) end
    limits.count_waiting(queue, key, -1)
    return true
  end

  -- Jobs with limits that can't be claimed now, whoever has permits.
  function limits.set_aside(key, id)
    call('HSET', K .. 'lt:' .. key, id, '')
    limits.note_key(key)
  end

  function limits.take_back(key, id)
    if call('HDEL', K .. 'lt:' .. key, id) == 1 then limits.forget_key(key) end
  end

  -- The key for which a pending job waits, or nothing.
  function limits.parked_behind(head)
    if not waits_for_limit(head) then return nil end
    local is_read, found = pcall(cjson.decode, head[WAITS])
    for _, wait in ipairs(is_read and type(found) == 'table' and found or {}) do
      if type(wait) == 'table' and wait.kind == 'limit' then return wait.name or '' end
    end
  end

  function limits.forget_parked(queue, key, member)
    if call('ZREM', limits.parked_key(queue, key), member) == 1 then limits.count_waiting(queue, key, -1) end
  end

  function limits.unpark(head, id)
    local key = limits.parked_behind(head)
    if key then limits.forget_parked(head[QUEUE], key, prune_member(head, id)) end
  end

  -- Let an available job wait behind the first of its keys.
  function limits.await_permits(head, id, uses, now)
    local key = uses[2]
    if uses[1] ~= key then
      limits.take_back(uses[1], id)
      uses[1] = key
      call('HSET', job_key(id), 'u', pack(uses))
    end
    if number_of(head[RUN]) > now then
      limits.set_aside(key, id)
    else
      limits.take_back(key, id)
      limits.wait_behind(head, id, key)
      limits.look_at(head[QUEUE], key, number_of(head[RUN]))
    end
  end

  function limits.park(head, id, now)
    local queue, key = head[QUEUE], limits.parked_behind(head)
    if key and call('ZADD', limits.parked_key(queue, key), 0, prune_member(head, id)) == 1 then
      limits.count_waiting(queue, key, 1)
      limits.look_at(queue, key, now)
    end
  end

  -- An available job leaves: whether it waited for a permit.
  function limits.leave(head, id, uses)
    if fair_keys[id] and limits.stop_waiting(head[QUEUE], uses[1], head[TYPE], fair_member(head, id), true) then return true end
    if limits.stop_waiting(head[QUEUE], uses[1], head[TYPE], ready_member(head, id)) then return true end
    limits.take_back(uses[1], id)
    return false
  end

  return limits
end

