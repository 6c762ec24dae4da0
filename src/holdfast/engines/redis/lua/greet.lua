-- The first act on every connection. It doesn't check the store's identity, because it returns it.
-- {id that the caller knows or '', the server's run id, the caller's generation, a new id, format, oldest}.
-- Upgrades a store of an older format: a program that knows only that format, and connects from now on, is refused.
-- Creates the store if there is none and the caller knows none. On a server where the store hasn't been before, a new
-- generation begins, and the store's seq at that time is kept: so it can be seen later whether a caller had seen more.
-- Returns {id or false, format, oldest, generation, seq, seq when the generation after the caller's began or false}.
local STORE = KEYS[1] .. ':store'
local known, run, gen = ARGV[1], ARGV[2], tonumber(ARGV[3])
local KEPT = 100
local store = redis.call('HMGET', STORE, 'id', 'format', 'oldest', 'gen', 'seq', 'run')
if not store[1] then
  if known ~= '' or redis.call('EXISTS', STORE) == 1 then return {false} end
  redis.call('HSET', STORE, 'id', ARGV[4], 'format', ARGV[5], 'oldest', ARGV[6], 'gen', 1, 'seq', 0, 'run', run)
  return {ARGV[4], ARGV[5], ARGV[6], 1, 0, false}
end
if known ~= '' and known ~= store[1] then return {store[1]} end
local now_gen = tonumber(store[4])
if tonumber(store[3]) > tonumber(ARGV[5]) then return {store[1], store[2], store[3], now_gen, tonumber(store[5]), false} end -- too new for us
if tonumber(store[2]) < tonumber(ARGV[5]) then redis.call('HSET', STORE, 'format', ARGV[5], 'oldest', ARGV[6]) end
if store[6] ~= run then
  now_gen = now_gen + 1
  redis.call('HSET', STORE, 'gen', now_gen, 'run', run, 'b' .. now_gen, store[5])
  redis.call('HDEL', STORE, 'b' .. (now_gen - KEPT))
end
local began = redis.call('HGET', STORE, 'b' .. (gen + 1))
return {store[1], store[2], store[3], now_gen, tonumber(store[5]), began}
