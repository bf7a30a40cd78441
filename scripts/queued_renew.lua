-- queued_renew: lengthen the lease of a hold, if it is still there.
--
-- KEYS[1], KEYS[2]  see queued
-- ARGV[1]  stay id
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  lease, ms
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, others have the lock
-- Caller   the watchdog, Extend
-- Twice    A lease only grows, and no hold is made here.
-- Memory   The HDEL changes nothing, but lets the ZADD pass on a server at its
--          memory limit.
-- Replica  "No such hold" must come from a master: a demoted one refuses the
--          HDEL with READONLY.

-- include signs
-- include queued
local stay, mode = ARGV[1], ARGV[2]
redis.call('hdel', holders, '')
if not held(mode, stay) then
  return -others(mode, stay)
end
lengthen(mode == 'exclusive' and mode or stay, tonumber(ARGV[3]))
return 1
