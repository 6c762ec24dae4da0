-- wait: when the next job of these queues becomes due, or a key of a limit is to be looked at, soon or within the last second.
-- Answers {seq, now, time or false}.
local now = time_now()
local best = false
for place = FIRST_ARG, #ARGV do
  for _, name in ipairs({'t:', 'lr:'}) do
    local found = call('ZRANGEBYSCORE', K .. name .. ARGV[place], '(' .. format('%.0f', now - 1000), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if found[2] and (not best or tonumber(found[2]) < tonumber(best)) then best = found[2] end
  end
end
return {seq, now, best}
