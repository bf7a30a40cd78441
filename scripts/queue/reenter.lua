-- queue/reenter: raise the count of a hold that its owner has.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  'exclusive' or 'shared'
-- ARGV[4]  entries wanted
-- Reply    1  held
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   Lock, TryLock, by the owner of a hold
-- Twice    The count is absolute, and the lease only grows. This script never creates a
--          hold.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include queue
local id, lease, mode, entries = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if not held(mode, id) then
  redis.call('hdel', holders, '')
  return -others(mode, id)
end
if mode == 'exclusive' then
  redis.call('hset', holders, 'count', entries)
  prolong(mode, lease)
else
  redis.call('hset', holders, id, entries)
  prolong(id, lease)
end
return 1
