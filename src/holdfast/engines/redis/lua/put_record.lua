-- put_record: {name, 1 for a value or 0 for none, value, expected version or ''}.
-- Returns {seq, 1, version, now}, or {seq, 0, the stored version}.
local name, has_value, value, expected = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1] == '1', ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3]
if moved and name ~= 'moved' then return moved end
local ever = version_ever(name)
local held = call('HEXISTS', K .. 'd', name) == 1 and ever or 0
if expected ~= '' and tonumber(expected) ~= held then return {seq, 0, held} end
local now, version = time_now(), ever + 1
put_record(name, version, now, has_value and value)
if name == 'moved' then
  if has_value then call('HSET', STORE, 'moved', value) else call('HDEL', STORE, 'moved') end
end
count_act()
tell('*')
return {seq, 1, version, now}
