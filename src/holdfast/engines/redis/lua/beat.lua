-- beat: {worker, status, connection, leaving, number of named jobs, their ids …, names of records to check …}.
-- Returns {seq, now, held (id, epoch …), cancelled ids, names of existing records}.
local worker, named = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 4])
local now = time_now()
if ARGV[FIRST_ARG + 3] == '1' then
  call('HDEL', K .. 'w', worker)
else
  call('HSET', K .. 'w', worker, pack({now, tonumber(ARGV[FIRST_ARG + 2]), door[2], ARGV[FIRST_ARG + 1]}))
end
count_act()
local held, cancelled, there = call('HGETALL', K .. 'h:' .. worker), {}, {}
local holds = {}
for place = 1, #held, 2 do holds[held[place]] = true end
for place = FIRST_ARG + 5, FIRST_ARG + 4 + named do
  if not holds[ARGV[place]] then
    local head = head_of(ARGV[place])
    if head and head[STATE] == 'k' then cancelled[#cancelled + 1] = ARGV[place] end
  end
end
for place = FIRST_ARG + 5 + named, #ARGV do
  if call('HEXISTS', K .. 'd', ARGV[place]) == 1 then there[#there + 1] = ARGV[place] end
end
return {seq, now, held, cancelled, there}
