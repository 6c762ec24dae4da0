-- Remove the statuses of dead workers, once all their jobs are rescued: {worker, the heartbeat that was seen, or 0 for one
-- that can't be read …}.
for place = FIRST_ARG, #ARGV, 2 do
  local worker = ARGV[place]
  local text = call('HGET', K .. 'w', worker)
  if text and (list_in(text)[1] or 0) == tonumber(ARGV[place + 1]) and call('EXISTS', K .. 'h:' .. worker) == 0 then
    call('HDEL', K .. 'w', worker)
  end
end
return {seq}
