-- lock/renew: lengthen the lease of a hold, if it is still there.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only check
-- Reply    1  held, for at least the lease from now
--          0  no such lock
--          -1 held by others
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold.
-- Replica  "Not there" must come from a master: see lock/release.

-- include renewal
return renewed(KEYS[1], ARGV[1], tonumber(ARGV[2]))
