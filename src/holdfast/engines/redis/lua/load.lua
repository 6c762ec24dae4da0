-- load: each further argument is a part of what is moved here, and can be repeated safely:
-- {'j', id, {field, entry …}, {{path, state, record} …}, job as in insert or false}: a large job has several parts, and exists
-- after the last one. {'k', name, job, digest, until or false}: a key. {'r', name, version, at, value or false}: a record.
-- Returns {seq, how many jobs are new}, or {seq, -1} if the store isn't marked.
if not moved then return {seq, -1} end
local now = time_now()
local new = 0
local load = {}

function load.j(id, entries, steps, job)
  local key = job_key(id)
  if call('HEXISTS', key, 'h') == 1 then return end
  if #entries > 0 then call('HSET', key, unpack(entries)) end
  for _, step in ipairs(steps) do put_step(id, step[1], step[2], step[3], true) end
  if job then
    add(job, now, job[2][ARRIVED])
    new = new + 1
  end
end

function load.k(name, job, digest, ends)
  if call('EXISTS', K .. 'k:' .. name) == 1 then return end
  call('SET', K .. 'k:' .. name, pack({job, digest, ends}))
  call('ZADD', K .. 'ku', ends or '+inf', name)
end

function load.r(name, version, at, value)
  local ever = version_ever(name)
  if ever > 0 then
    local text = call('HGET', K .. 'd', name)
    local held = text and list_in(text)[3]
    if held == value and ever >= version then return end
    version = math.max(version, ever + 1)
  end
  put_record(name, version, at, value)
  if sub(name, 1, 7) == 'bucket/' then call('ZADD', K .. 'lb', at, sub(name, 8)) end
  if sub(name, 1, 5) == 'fair/' then call('ZADD', K .. 'ft', at, name) end
end

count_act()
for place = FIRST_ARG, #ARGV do
  local part = unpack_(ARGV[place])
  load[part[1]](unpack(part, 2))
end
write_counts()
write_step_counts()
write_order()
return {seq, new}
