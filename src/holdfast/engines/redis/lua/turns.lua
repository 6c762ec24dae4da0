-- What a claim does in a queue where jobs have fair keys: made only if there are some. `own` is what the claim lends:
-- now, page, permits(), limits(), is_known(kind), kinds_of(queue), give(id, key, head, got), taken(), and the name of its round.
-- Jobs are taken in the order of their turns: from one fair key to the next in the order of their bytes, a job of each. Those
-- without a fair key are one key together, the empty one.
local function claims_in_turn(own)
  local turns = {}
  local now = own.now
  local RANK_ENDS = 17 -- of a member

  -- Lua's own comparison uses the server's locale.
  local function is_before(one, other)
    if one == other then return false end
    for place = 1, math.min(#one, #other) do
      local left, right = string.byte(one, place), string.byte(other, place)
      if left ~= right then return left < right end
    end
    return #one < #other
  end

  local function fair_of(member)
    local zero = string.find(member, '\0', RANK_ENDS + 1, true)
    return sub(member, RANK_ENDS + 1, zero - 1), sub(member, zero + 1)
  end

  -- The job of a member, if it can start; otherwise it leaves: it has changed, expired, or its time is to come.
  local function ripe(source, member, id)
    local key = job_key(id)
    local got = call('HMGET', key, 'h', 'b', 'r', 'x', 'u', 'f')
    local head, uses = got[1] and unpack_(got[1]), got[5] and unpack_(got[5])
    fair_keys[id] = got[6] or nil
    local is_here = head and head[STATE] == 'a' and (uses and uses[1] or '') == source.key
      and (got[6] and fair_member(head, id) or ready_member(head, id)) == member
    if is_here and number_of(head[RUN]) <= now and not expired(head, now) then
      return {member = member, id = id, job = key, head = head, uses = uses, got = got}
    end
    source.drop(member)
    if is_here then
      if number_of(head[RUN]) > now then call('ZADD', TIMED[head[QUEUE]], number_of(head[RUN]), id) end -- the clock was set back
      if uses then own.limits().set_aside(uses[1], id) end
    elseif head and head[STATE] == 'a' and not source.is_fair then -- a process of an older format has made it available
      if source.key == '' then make_ready(head, id, now, uses) elseif got[6] then own.limits().wait_behind(head, id, source.key) end
    end
  end

  -- The first job between two bounds that can start.
  local function first_between(source, low, high)
    while true do
      local member = call('ZRANGEBYLEX', source.set, low, high, 'LIMIT', 0, 1)[1]
      if not member then return nil end
      local fair, rest = fair_of(member)
      local found = ripe(source, member, sub(rest, ID_AT - RANK_ENDS))
      if found then
        found.fair, found.place, found.rank = fair, rest, sub(member, 1, RANK_ENDS)
        return found
      end
    end
  end

  local function first_plain(source)
    while true do
      local member = call('ZRANGE', source.set, 0, 0)[1]
      if not member then return nil end
      local found = ripe(source, member, sub(member, ID_AT))
      if found then
        found.fair, found.place, found.rank = '', sub(member, RANK_ENDS + 1), sub(member, 1, RANK_ENDS)
        return found
      end
    end
  end

  local function sources_of(queue, keys)
    local sources = {}
    local function add(key, kind)
      local plain = key == '' and ready_key(queue, kind) or own.limits().waiting_key(queue, key, kind)
      sources[#sources + 1] = {key = key, kind = kind, set = plain, drop = function(member)
        if key ~= '' then
          own.limits().stop_waiting(queue, key, kind, member)
        else
          call('ZREM', plain, member)
          taken_from(queue, kind)
        end
      end}
    end
    local function add_fair(key, kind)
      sources[#sources + 1] = {key = key, kind = kind, is_fair = true, set = fair_set(queue, key, kind), drop = function(member)
        if key ~= '' then own.limits().stop_waiting(queue, key, kind, member, true) else leave_turns(queue, '', kind, member) end
      end}
    end
    for _, kind in ipairs(own.kinds_of(queue)) do add('', kind) end
    for _, kind in ipairs(fair_kinds(queue)) do
      if own.is_known(kind) then add_fair('', kind) end
    end
    for _, key in ipairs(keys) do
      for _, kind in ipairs(call('SMEMBERS', own.limits().waiting_kinds(queue, key))) do
        if own.is_known(kind) then
          add(key, kind)
          add_fair(key, kind)
        end
      end
    end
    return sources
  end

  -- The best of what the sources have: by fair key, then by time. Which of them had nothing is not asked again in this call.
  local function best_of(sources, find)
    local best
    for _, source in ipairs(sources) do
      local found = find(source)
      if found then
        found.source = source
        if not best or is_before(found.fair, best.fair) or found.fair == best.fair and is_before(found.place, best.place) then best = found end
      end
    end
    return best
  end

  -- The highest priority of which there is something, and whether some of it has fair keys.
  local function level_of(sources)
    local rank, is_fair
    for _, source in ipairs(sources) do
      local found
      if source.is_fair then found = first_between(source, '-', '+') else found = first_plain(source) end
      if found and (not rank or is_before(found.rank, rank)) then rank, is_fair = found.rank, false end
      if found and found.rank == rank and source.is_fair then is_fair = true end
    end
    return rank, is_fair
  end

  -- The job whose turn is next after a key: of a greater key; then one without a key; then from the beginning.
  local function next_turn(sources, rank, last)
    local function after(bound)
      return best_of(sources, function(source)
        return source.is_fair and first_between(source, bound, '[' .. rank .. '\255') or nil
      end)
    end
    local found = last and after('(' .. rank .. last .. '\1')
    if found then return found end
    return best_of(sources, function(source)
      local first = not source.is_fair and first_plain(source)
      return first and first.rank == rank and first or nil
    end) or after('[' .. rank)
  end

  local function round_name(queue, rank)
    return 'fair/' .. queue .. '/' .. own.round .. '/' .. own.level(rank)
  end

  local function last_turn(queue, rank)
    local text = call('HGET', K .. 'd', round_name(queue, rank))
    local value = text and list_in(text)[3]
    return type(value) == 'string' and sub(value, 1, 1) == '>' and sub(value, 2) or nil
  end

  -- Take a job, or move it to where it belongs. Answers with what stops it.
  local function take_or_move(queue, found)
    local source, id, uses, permits = found.source, found.id, found.uses, own.permits()
    local block = uses and permits.block(uses, 2, id, '')
    if block and block[1] == source.key then return block end
    source.drop(found.member)
    if block then
      uses[1] = block[1]
      call('HSET', found.job, 'u', pack(uses))
      own.limits().wait_behind(found.head, id, block[1])
      permits.look_later(queue, block[1], block[2])
      return block
    end
    if uses then permits.start(uses, 2, id, found.head[EPOCH] + 1, '', 1) end
    own.give(id, found.job, found.head, found.got)
  end

  -- Take jobs of a queue. Answers what keeps jobs behind some keys from starting, and how many were looked at.
  function turns.take(queue, most, keys)
    local sources, blocks, looked = sources_of(queue, keys), {}, 0
    local is_looked_at = {}
    for _, key in ipairs(keys) do is_looked_at[key] = true end
    local rank, is_fair, last, ended
    local function end_level()
      if ended then
        local name = round_name(queue, rank)
        put_record(name, version_ever(name) + 1, now, '>' .. ended)
        call('ZADD', K .. 'ft', now, name)
      end
      rank, ended = nil, nil
    end
    while own.taken() < most and looked < 2 * own.page do
      if not rank then
        rank, is_fair = level_of(sources)
        if not rank then break end
        last = is_fair and last_turn(queue, rank) or nil
      end
      local found = next_turn(sources, rank, last)
      if found then
        looked = looked + 1
        last = found.fair
        local block = take_or_move(queue, found)
        if not block and is_fair then ended = found.fair end
        if block and is_looked_at[block[1]] then -- nobody behind this key can start
          blocks[block[1]] = block
          for place = #sources, 1, -1 do
            if sources[place].key == block[1] then table.remove(sources, place) end
          end
        end
      else
        end_level()
      end
    end
    end_level()
    return blocks, looked
  end

  return turns
end
