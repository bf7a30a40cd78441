-- lock/enter_many: take several locks for as many holds, each as lock/enter does.
--
-- KEYS[1], KEYS[2], KEYS[3], ...  for each the keys of lock/enter
-- ARGV[1], ARGV[2], ARGV[3], ...  for each the arguments of lock/enter
-- Reply    for each what lock/enter replies, or nil: nothing was done for it, and
--          lock/enter by itself will say why
-- Caller   Lock, TryLock of many callers
-- Twice    As lock/enter, which a copy is left to.
-- Memory   As lock/enter: if the server refuses the first token, it refuses all.
-- Replica  As lock/enter: nil for a lock that is free.

-- include take
-- include hash

-- enter takes one lock, or looks who holds it.
local function enter(lock, tombstone, tokens, id, lease, source, now, digits)
  if redis.call('exists', lock, tombstone) == 0 then
    local token, n = take(lock, id, lease, tokens, source, now, digits)
    if n > 0 then
      return {1, token, n}
    end
    return token
  end
  if redis.call('exists', tombstone) == 1 or redis.call('hexists', lock, id) == 1 then
    return false
  end
  local reply = refused(lock, redis.call('pttl', lock))
  return not reply.err and reply
end

local replies = {}
local now, digits = micros()
for i = 1, #KEYS, 3 do
  local ok, reply = pcall(enter, KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[i], ARGV[i + 1], ARGV[i + 2], now, digits)
  replies[(i + 2) / 3] = ok and reply
end
return replies
