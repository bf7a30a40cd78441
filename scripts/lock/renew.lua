-- lock/renew: lengthen the lease of a hold, if it is still there.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only look
-- Reply    1  held, for at least the lease from now
--          0  no such lock
--          -1 held by others
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold.
-- Replica  "Not there" must come from a master: see lock/release.

-- include ttl
local lock = KEYS[1]
local id, lease = ARGV[1], tonumber(ARGV[2])
if redis.call('hexists', lock, id) == 0 then
  redis.call('hdel', lock, '')
  return -redis.call('exists', lock)
end
lengthen(lock, lease)
return 1
