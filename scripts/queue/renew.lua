-- queue/renew: lengthen the lease of a hold, if it is still there.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only check
-- ARGV[3]  'exclusive' or 'shared'
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold.
-- Memory   The HDEL changes nothing, but lets the ZADD pass on a server at its memory
--          limit.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include queue
local id, lease, mode = ARGV[1], tonumber(ARGV[2]), ARGV[3]
redis.call('hdel', holders, '')
if not held(mode, id) then
  return -others(mode, id)
end
prolong(mode == 'exclusive' and mode or id, lease)
return 1
