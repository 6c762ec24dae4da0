-- wait: when the next job of these queues becomes due, soon or within the last second. Returns {seq, now, time or
-- false}.
local now = time_now()
local best = false
for place = FIRST_ARG, #ARGV do
  local found = call('ZRANGEBYSCORE', K .. 't:' .. ARGV[place], '(' .. format('%.0f', now - 1000), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if found[2] and (not best or tonumber(found[2]) < tonumber(best)) then best = found[2] end
end
return {seq, now, best}
