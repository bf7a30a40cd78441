-- lock/inspect: one consistent look at a lock.
--
-- KEYS[1]  lock hash
-- KEYS[2]  Redisson's token counter, if the lock has one
-- Reply    {ttl, token, waiters, holder, entries, mode, holder, entries, mode, ...}, the
--          same for all inspect scripts
--          ttl      rest of the longest lease, ms; -1: it has none; -2: the lock is free
--          token    0: Redis does not show it
--          waiters  -1: Redis does not keep them
--          entries  as text
--          mode     'exclusive' or 'shared'
-- Caller   State, Watch, CurrentToken
-- Twice    Reads only.

-- include hash
local lock, counter = KEYS[1], KEYS[2]
local fields = redis.call('hgetall', lock)
local reply = foreign(fields)
if reply then
  return reply
end
local token = counter and tonumber(redis.call('get', counter)) or 0
return report(fields, redis.call('pttl', lock), token, -1)
