-- rw/write_renew: lengthen the lease of a write hold, if it is still there.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only check
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include ttl
-- include sides
local lock = KEYS[1]
local id, lease = ARGV[1], tonumber(ARGV[2])
if redis.call('hexists', lock, id .. ':write') == 0 then
  return absent(lock, id)
end
lengthen(lock, lease)
return 1
