-- Who gets a permit of a shared limit: the algorithm of engines/permits.py and core/shared_limits.py. One script runs at a
-- time, so nothing has to be locked. All of it is made by the first who needs it: most calls need no permits.
-- `permits_at(now)` gives what one call hands out; who uses it calls `finish`, which writes the buckets.

local function permits_at(now)
  local RESERVED = '~reserved' -- the path of a permit that is kept for a job that was woken for it
  local limits = shared_limits()
  local limit_of, note_key, forget_key, look_at, recheck = limits.limit_of, limits.note_key, limits.forget_key, limits.look_at, limits.recheck
  local UNIT, RESERVED_MS, REOPEN_MS, REOPEN_PERIODS = 1000000, 30000, 1000, 10
  local CHECKED = 100 -- how many permits of a full key one call looks at, whether their leases are current
  local EXACT = 9007199254740992
  local NO_RULES = {at_once = false, burst = false, refill = 0, period_ms = 1}
  local NO_BUCKET = {tokens = 0, at = 0, closed_until = 0, starts = 0, granted = 0}
  local all_rules, buckets, changed, held = {}, {}, {}, {}

  -- Numbers of a JSON object; nothing if it can't be read. What may be missing altogether is `false` in `defaults`.
  local function numbers_in(text, defaults)
    local is_read, found = pcall(cjson.decode, text)
    if not is_read or type(found) ~= 'table' or not string.find(text, '^%s*{') then return nil end
    local numbers = {}
    for name, default in pairs(defaults) do
      local value = found[name]
      if value == nil or (value == cjson.null and default == false) then
        value = default
      elseif type(value) ~= 'number' or value ~= math.floor(value) or math.abs(value) > EXACT then
        return nil
      end
      numbers[name] = value
    end
    return numbers
  end

  local function record_in(name, defaults)
    local text = call('HGET', K .. 'd', name)
    local value = text and list_in(text)[3]
    return type(value) == 'string' and numbers_in(value, defaults) or nil
  end

  local function rules_of(key)
    local limit = limit_of(key)
    if not all_rules[limit] then
      local rules = record_in('limit/' .. limit, NO_RULES)
      all_rules[limit] = rules and rules.period_ms > 0 and rules or NO_RULES
    end
    return all_rules[limit]
  end

  -- floor(a * b / c) and the rest of it, exact for what limits count with: a product may be too large for a double, so it is
  -- divided digit by digit.
  local function times_by(a, b, c)
    local whole = math.floor(a / c)
    local left, quotient, rest, digits = a - whole * c, 0, 0, {}
    local high = b
    while high > 0 do
      digits[#digits + 1] = high % 4
      high = math.floor(high / 4)
    end
    for place = #digits, 1, -1 do
      rest = rest * 4 + left * digits[place]
      local more = math.floor(rest / c)
      quotient, rest = quotient * 4 + more, rest - more * c
    end
    return whole * b + quotient, rest
  end

  local function filled(rules, bucket)
    local most = rules.burst or 0
    if not bucket then return {tokens = most, at = now, closed_until = 0, starts = 0, granted = 0} end
    local missing = most - bucket.tokens
    if missing > 0 then missing = missing - math.min(missing, (times_by(math.max(0, now - bucket.at), rules.refill, rules.period_ms))) end
    return {
      tokens = most - math.max(missing, 0), at = math.max(now, bucket.at),
      closed_until = bucket.closed_until, starts = bucket.starts, granted = bucket.granted,
    }
  end

  -- A job that waits for a budget waits behind a key that ends with what it needs: its bucket is full if that is left.
  local function bucket_at(key)
    if not buckets[key] then
      local base, need = string.match(key, '^(~budget/[^/]*/[^/]*)/(%d+)$')
      local rules = rules_of(key)
      local bucket = filled(rules, record_in('bucket/' .. (base or key), NO_BUCKET))
      if base then bucket.tokens = bucket.tokens >= tonumber(need) and rules.burst or 0 end
      buckets[key] = bucket
    end
    return buckets[key]
  end

  local function reopening(bucket)
    if bucket.closed_until == 0 then return now end
    local periods = math.floor((now - bucket.closed_until) / REOPEN_MS)
    if periods >= REOPEN_PERIODS or bucket.starts < 2 ^ (periods + 1) then return now end
    return bucket.closed_until + (periods + 1) * REOPEN_MS
  end

  -- When a permit may start: now, later, or false when only the end of another one can make room.
  local function start_time(key, number, units)
    local rules, bucket = rules_of(key), bucket_at(key)
    if bucket.closed_until > now then return bucket.closed_until end
    if rules.at_once and number >= rules.at_once then return false end
    local later = reopening(bucket)
    if later > now or not rules.burst then return later end
    local missing = math.max(units, 1) - bucket.tokens
    if missing <= 0 then return now end
    if rules.refill <= 0 then return false end
    local wait, rest = times_by(missing, rules.period_ms, rules.refill)
    return now + wait + (rest > 0 and 1 or 0)
  end

  -- The permits of a job at one path: {{key, epoch, try} …}.
  local function permits_of(id, path)
    local text = call('HGET', K .. 'lj:' .. id, path)
    return text and list_in(text) or {}
  end

  local function put_permits(id, path, list)
    if #list > 0 then
      call('HSET', K .. 'lj:' .. id, path, pack(list))
    else
      call('HDEL', K .. 'lj:' .. id, path)
    end
  end

  local function without(list, key)
    local rest = {}
    for _, one in ipairs(list) do
      if one[1] ~= key then rest[#rest + 1] = one end
    end
    return rest
  end

  -- Take a permit from its key. Who calls it takes it from its job.
  local function drop(id, path, key)
    if path == RESERVED then call('ZREM', K .. 'lv:' .. key, id) end
    if call('HDEL', K .. 'lp:' .. key, id .. '\0' .. path) == 0 then return end
    if held[key] then held[key] = held[key] - 1 end
    forget_key(key)
  end

  local function epoch_text(epoch) return type(epoch) == 'number' and format('%.0f', epoch) or epoch end

  -- Permits whose lease is over, and those that were kept for too long: {{id, path} …}. All of them where there are few; else
  -- those among some of them, which differ from time to time.
  local function stale_permits(key, number)
    local stale = {}
    for _, id in ipairs(call('ZRANGEBYSCORE', K .. 'lv:' .. key, '-inf', now, 'LIMIT', 0, CHECKED)) do
      stale[#stale + 1] = {id, RESERVED}
    end
    local name = K .. 'lp:' .. key
    local found = number <= CHECKED and call('HGETALL', name) or call('HSCAN', name, now % 2 ^ 32, 'COUNT', CHECKED)[2]
    for place = 1, #found, 2 do
      local id, path = string.match(found[place], '^(%Z*)%z(.*)$')
      local head = head_of(id)
      local is_current = head and head[STATE] == 'o' and epoch_text(head[EPOCH]) == found[place + 1]
      if found[place + 1] ~= 'r' and not is_current then stale[#stale + 1] = {id, path} end
    end
    return stale
  end

  local function drop_stale(key, number)
    local stale = stale_permits(key, number)
    for _, one in ipairs(stale) do
      put_permits(one[1], one[2], without(permits_of(one[1], one[2]), key))
      drop(one[1], one[2], key)
    end
    return #stale
  end

  local function count_held(key)
    if not held[key] then
      local at_once = rules_of(key).at_once
      local number = at_once and call('HLEN', K .. 'lp:' .. key) or 0
      if at_once and number >= at_once then number = number - drop_stale(key, number) end
      held[key] = number
    end
    return held[key]
  end

  local function put_permit(id, path, key, epoch)
    call('HSET', K .. 'lp:' .. key, id .. '\0' .. path, epoch)
    note_key(key)
    held[key] = count_held(key) + 1
  end

  local permits = {}

  -- Why a job, or one of its steps, can't start under all its keys now: {key, at or false}; nothing if it can. `uses` has key
  -- and units in turn, from `first` on.
  function permits.block(uses, first, id, path)
    local is_held = false
    for place = first, #uses, 2 do is_held = count_held(uses[place]) > 0 or is_held end
    local own, kept = {}, {}
    if is_held then own, kept = permits_of(id, path), permits_of(id, RESERVED) end
    for place = first, #uses, 2 do
      local key = uses[place]
      local others = count_held(key)
      if others > 0 then others = others - (#own - #without(own, key)) - (#kept - #without(kept, key)) end
      local at = start_time(key, others, uses[place + 1])
      if not at or at > now then return {key, at} end
    end
  end

  -- Give a job or step its permits, after `block` has found room for it.
  function permits.start(uses, first, id, epoch, path, try)
    local own, kept = permits_of(id, path), permits_of(id, RESERVED)
    local left = kept
    for place = first, #uses, 2 do
      local key = uses[place]
      for _, one in ipairs(own) do
        if one[1] == key then drop(id, path, key) end
      end
      if #left > #without(left, key) then
        drop(id, RESERVED, key)
        left = without(left, key)
      end
      own = without(own, key)
      own[#own + 1] = {key, epoch, try}
      put_permit(id, path, key, epoch_text(epoch))
      local bucket, rules = bucket_at(key), rules_of(key)
      if rules.burst then bucket.tokens = bucket.tokens - uses[place + 1] end
      if bucket.closed_until > 0 then bucket.starts = bucket.starts + 1 end
      changed[key] = changed[key] or rules.burst or bucket.closed_until > 0
    end
    put_permits(id, path, own)
    if #left < #kept then put_permits(id, RESERVED, left) end
  end

  -- What keeps one more permit of a key from starting: {key, at or false}; nothing if there is room.
  function permits.full(key)
    local at = start_time(key, count_held(key), 0)
    if not at or at > now then return {key, at} end
  end

  -- What keeps one more job that gave up its slot from being woken. The rate must have a whole unit for each job that was
  -- woken before and has not come for its permit yet, too.
  function permits.full_to_wake(key)
    local burst = rules_of(key).burst
    local awaited = burst and call('ZCOUNT', K .. 'lv:' .. key, '(' .. format('%.0f', now), '+inf') or 0
    local at = start_time(key, count_held(key), math.min(UNIT, burst or UNIT) * (awaited + 1))
    if not at or at > now then return {key, at} end
  end

  -- Whether jobs other than this one have all the permits of a key.
  local function is_full(key, id)
    local at_once = rules_of(key).at_once
    local number = at_once and call('HLEN', K .. 'lp:' .. key) or 0
    if not at_once or number < at_once then return false end
    local kept_until = call('ZSCORE', K .. 'lv:' .. key, id)
    local own = kept_until and tonumber(kept_until) > now and 1 or 0
    return number - #stale_permits(key, number) - own >= at_once
  end

  -- Keep a permit for a job that is woken for it; but not if the job can't start yet, because a limit of its own is full: those
  -- who hold that one may need this permit to end. `uses` are what the job needs, from the second place on, if anything.
  function permits.reserve(key, id, uses)
    for place = 2, uses and #uses or 0, 2 do
      if uses[place] ~= key and is_full(uses[place], id) then return end
    end
    local kept = without(permits_of(id, RESERVED), key)
    kept[#kept + 1] = {key, 0, 1}
    put_permits(id, RESERVED, kept)
    put_permit(id, RESERVED, key, 'r')
    call('ZADD', K .. 'lv:' .. key, now + RESERVED_MS, id)
    recheck(key, now + RESERVED_MS)
  end

  -- When a claim of a queue may look at a full key again. The end of a permit says so by itself.
  function permits.look_later(queue, key, at)
    local kept = not at and call('ZRANGEBYSCORE', K .. 'lv:' .. key, '(' .. format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    at = at or tonumber(kept[2])
    if at then look_at(queue, key, at) end
  end

  -- End the permits of a job, or of one of its steps, and let others have them.
  function permits.release(id, path)
    local found = path and {path, call('HGET', K .. 'lj:' .. id, path)} or call('HGETALL', K .. 'lj:' .. id)
    local keys = {}
    for place = 1, #found, 2 do
      for _, one in ipairs(found[place + 1] and list_in(found[place + 1]) or {}) do
        drop(id, found[place], one[1])
        keys[one[1]] = true
      end
      call('HDEL', K .. 'lj:' .. id, found[place])
    end
    for key in pairs(keys) do
      if rules_of(key).at_once then recheck(key, now) end -- a rate has room by time alone
    end
  end

  local function settle(id, path, settles)
    local own = permits_of(id, path)
    for place = 1, #settles, 2 do
      local key = settles[place]
      if #own > #without(own, key) and rules_of(key).burst then
        local bucket = bucket_at(key)
        bucket.tokens, changed[key] = bucket.tokens - settles[place + 1], true
        recheck(key, now)
      end
    end
  end

  -- Whether this very try has its permits already: the answer was lost, and it asks again.
  local function is_admitted(id, epoch, path, try, uses)
    local has = {}
    for _, one in ipairs(permits_of(id, path)) do has[one[1]] = one[2] == epoch and one[3] == try end
    for place = 1, #uses, 2 do
      if not has[uses[place]] then return false end
    end
    return true
  end

  -- Answer a step whose lease is current: nothing, or {key, at or false} if it is refused.
  function permits.admit(id, epoch, path, try, uses, settles)
    if #uses == 0 then
      settle(id, path, settles)
      permits.release(id, path)
    elseif not is_admitted(id, epoch, path, try, uses) then
      local block = permits.block(uses, 1, id, path)
      if block then return block end
      permits.start(uses, 1, id, epoch, path, try)
    end
  end

  function permits.finish()
    for key, is_changed in pairs(changed) do
      if is_changed then
        local bucket, name = buckets[key], 'bucket/' .. key
        local granted = bucket.granted > 0 and format(',"granted":%.0f', bucket.granted) or ''
        local text = format('{"tokens":%.0f,"at":%.0f,"closed_until":%.0f,"starts":%.0f%s}', bucket.tokens, bucket.at, bucket.closed_until, bucket.starts, granted)
        put_record(name, version_ever(name) + 1, now, text)
        call('ZADD', K .. 'lb', now, key)
      end
    end
    changed = {}
  end

  -- How much of a key is used: {held, waiting, tokens, closed until, burst or false}.
  function permits.usage(key)
    local number = call('HLEN', K .. 'lp:' .. key)
    if number > 0 then number = number - #stale_permits(key, number) end
    local waiting, queues = call('HLEN', K .. 'lt:' .. key), call('HGETALL', K .. 'lq:' .. key)
    for place = 2, #queues, 2 do waiting = waiting + queues[place] end
    local bucket = bucket_at(key)
    return {number, waiting, bucket.tokens, bucket.closed_until > now and bucket.closed_until or 0, rules_of(key).burst}
  end

  -- Whether a key's bucket is full by now, and it is open and may refill: a key without one starts full.
  function permits.needs_no_bucket(key, before)
    local bucket, rules = record_in('bucket/' .. key, NO_BUCKET), rules_of(key)
    return bucket and rules.refill ~= 0 and bucket.closed_until <= before and filled(rules, bucket).tokens == rules.burst
  end

  return permits
end
