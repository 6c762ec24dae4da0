-- put_record: {name, 1 for a value or 0 for none, value, expected version or ''}.
-- Answers {seq, 1, version, now}, or {seq, 0, the version that is there}.
local name, has_value, value, expected = ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1] == '1', ARGV[FIRST_ARG + 2], ARGV[FIRST_ARG + 3]
local ever = tonumber(call('HGET', K .. 'dv', name) or 0)
local held = call('HEXISTS', K .. 'd', name) == 1 and ever or 0
if expected ~= '' and tonumber(expected) ~= held then return {seq, 0, held} end
local now, version = time_now(), ever + 1
call('HSET', K .. 'dv', name, version)
if has_value then
  call('HSET', K .. 'd', name, pack({version, now, value}))
  call('ZADD', K .. 'dn', 0, name)
else
  call('HDEL', K .. 'd', name)
  call('ZREM', K .. 'dn', name)
end
count_act()
tell('*')
return {seq, 1, version, now}
