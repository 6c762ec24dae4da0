-- What can be claimed.

local function ready_key(queue, kind) return K .. 'q:' .. #queue .. ':' .. queue .. ':' .. kind end

-- Let an available job be claimed; or wait for its permits, if it has limits; or for the turn of its fair key. A queue's types are noted once for each call.
local noted = {}
local function make_ready(head, id, now, uses)
  if uses then return shared_limits().await_permits(head, id, uses, now) end
  if fair_keys[id] then return enter_turns(head, id, '') end
  local key = ready_key(head[QUEUE], head[TYPE])
  call('ZADD', key, 0, ready_member(head, id))
  if not noted[key] then
    noted[key] = true
    call('SADD', K .. 'y:' .. head[QUEUE], head[TYPE])
  end
end

-- Something of a type was taken: was it the last?
local function taken_from(queue, kind)
  local key = ready_key(queue, kind)
  if call('EXISTS', key) == 0 then
    noted[key] = nil
    call('SREM', K .. 'y:' .. queue, kind)
  end
end

