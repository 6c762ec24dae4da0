-- Write or remove a record, as the arguments say: {name, 1 for a value or 0 for none, value, expected version or '', how many keys
-- of a changed limit are rechecked}. Answers {seq, 1, version, now, where to continue the rechecks or false}, or {seq, 0, the version
-- that is there}.
local function put()
  local name, has_value, value, expected = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1] == '1', ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3]
  if moved and name ~= 'moved' then return moved end
  local ever = version_ever(name)
  local held = call('HEXISTS', K .. 'd', name) == 1 and ever or 0
  if expected ~= '' and tonumber(expected) ~= held then return {seq, 0, held} end
  local now, version = time_now(), ever + 1
  put_record(name, version, now, has_value and value)
  local go_on = false
  if sub(name, 1, 6) == 'limit/' then
    go_on = shared_limits().recheck_page(sub(name, 7), '', tonumber(ARGV[FIRST_ARG + 4]))
  elseif sub(name, 1, 7) == 'bucket/' then
    call('ZADD', K .. 'lb', now, sub(name, 8))
    shared_limits().recheck(sub(name, 8), 0)
  end
  if name == 'moved' then
    if has_value then call('HSET', STORE, 'moved', value) else call('HDEL', STORE, 'moved') end
  end
  count_act()
  tell('*')
  return {seq, 1, version, now, go_on}
end

