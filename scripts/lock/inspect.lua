-- lock/inspect: one consistent look at a lock.
--
-- KEYS[1]  lock hash
-- KEYS[2]  Redisson's token counter, if the lock has one
-- Reply    {ttl, token, waiters, holder, entries, mode, holder, entries, mode, ...}: the
--          rest of the longest lease in ms, -1: it has none, -2: the lock is free; the
--          token, 0: it does not show here; the waiters in Redis, -1: it does not know
--          them; entries are text; mode is 'exclusive' or 'shared'. All inspect scripts
--          reply so
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
