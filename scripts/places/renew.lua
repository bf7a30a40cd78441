-- places/renew: lengthen the lease of a hold of a DoubleBarrier, if it is still there.
--
-- KEYS[1..2]  see shared/places.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only check
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, but others are in
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold.
-- Memory   The ZREM changes nothing, but lets the ZADD pass on a server at its memory limit.
-- Replica  "No such hold" must come from a master: see places/release.

-- include places
local id, lease = ARGV[1], tonumber(ARGV[2])
redis.call('zrem', places, '')
if not held(id) then
  return -others()
end
prolong(id, lease)
return 1
