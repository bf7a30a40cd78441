-- lock/reenter: raise the count of a hold that its owner has.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  entries wanted
-- Reply    1  held
--          0  no such lock
--          -1 held by others
-- Caller   Lock, TryLock, by the owner of a hold
-- Twice    The count is absolute, and the lease only grows. This script never creates a
--          hold.
-- Replica  "Not there" must come from a master: see lock/release.

-- include ttl
local lock = KEYS[1]
local id, lease, entries = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('hexists', lock, id) == 0 then
  redis.call('hdel', lock, '')
  return -redis.call('exists', lock)
end
redis.call('hset', lock, id, entries)
lengthen(lock, lease)
return 1
