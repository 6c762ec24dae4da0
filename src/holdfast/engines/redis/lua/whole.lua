-- What a reader gets of a job: head, body, result, error, and the signals of its inbox.
local function whole(id, text, head)
  local key = job_key(id)
  local got = call('HMGET', key, 'b', 'r', 'x')
  return {id, text, got[1], got[2], got[3], signals_of(key, head)}
end

