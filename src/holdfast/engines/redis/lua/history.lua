-- history: {job, above which version, how many}. Returns {seq, head, body and first entry (for the first one), entry
-- …}.
local id, after, most = ARGV[FIRST_ARG], tonumber(ARGV[FIRST_ARG + 1]), tonumber(ARGV[FIRST_ARG + 2])
local got = call('HMGET', job_key(id), 'h', 'b', 'e1')
if not got[1] then return {seq} end
local answer = {seq, got[1], after < 1 and got[2], after < 1 and got[3]}
for version = math.max(after + 1, 2), math.min(after + most, unpack_(got[1])[VERSION]) do
  answer[#answer + 1] = call('HGET', job_key(id), 'e' .. version)
end
return answer
