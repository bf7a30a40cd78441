-- lock/inspect: one consistent view of a lock.
--
-- KEYS[1]  lock hash
-- KEYS[2]  Redisson's token counter, if the lock has one
-- ARGV[1..2]  channel of its releases, and how they are published: see shared/listeners.lua.
--          Absent if it has none
-- Reply    {ttl, token, waiters, holder, entries, mode, holder, entries, mode, ...}, the
--          same for all inspect scripts
--          ttl      rest of the longest lease, ms; -1: it has none; -2: the lock is free
--          token    0: Redis does not show it
--          waiters  below 0: Redis does not keep them. -1 less how many connections are subscribed
--          entries  as text
--          mode     'exclusive' or 'shared'
-- Caller   State, Watch, CurrentToken
-- Twice    Reads only.

-- include whole
-- include listeners
local lock, counter = KEYS[1], KEYS[2]
local fields, reply = all(lock)
if reply then
  return reply
end
local token = counter and tonumber(redis.call('get', counter)) or 0
return report(fields, redis.call('pttl', lock), token, listeners(ARGV[1], ARGV[2]))
