-- rw/read_renew: lengthen the lease of a read hold, if it is still there.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  timer of the first entry
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only lengthen the TTL of the hash to the hold's. Each
--          renewal does that too: Redisson's renewal of a reader can shorten the TTL
-- ARGV[3]  prefix of the timers' names
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never creates a hold: one without its first
--          timer has ended.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include reading
return readerRenewed(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3])
