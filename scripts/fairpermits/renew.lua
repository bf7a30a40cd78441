-- fairpermits/renew: lengthen the lease of a hold, if it is still there.
--
-- KEYS[1..2]  see shared/permitqueue.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only check
-- Reply    1  held, for at least the lease from now
--          0  no such hold
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold.
-- Memory   The ZREM changes nothing, but lets the ZADD pass on a server at its memory
--          limit.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include permitqueue
local id, lease = ARGV[1], tonumber(ARGV[2])
redis.call('zrem', ends, '')
if not live(id) or redis.call('hexists', state, id) == 0 then
  return 0
end
prolong(id, lease)
return 1
