-- put_record with new jobs: the arguments of putting.lua, then one for each job, as in insert.lua. The answer is that of putting.lua.
local answer = put()
if answer[2] == 1 then
  local now = answer[4]
  for place = FIRST_ARG + 5, #ARGV do
    local job = unpack_(ARGV[place])
    if call('EXISTS', job_key(job[1])) == 0 then add(job, now) end
  end
  write_counts()
  write_order()
end
return answer
