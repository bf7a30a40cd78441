-- permits/renew: lengthen the lease of the permits of a hold, if all of them are still held.
-- A hold that has lost a permit is lost as a whole: the other permits are given back.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- ARGV[3]  base of the hold's permits
-- ARGV[4]  how many it has
-- ARGV[5]  lease, ms; 0: only check
-- Reply    1  held, for at least the lease from now
--          0  not all are there
-- Caller   the watchdog, Extend
-- Twice    A lease only grows. This script never takes a permit.
-- Memory   ZREMRANGEBYSCORE comes first: it is allowed at the memory limit, and lets the
--          ZADD pass.
-- Replica  That command also makes a demoted master refuse: see lock/release.

-- include permits
local base, n, lease = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
reclaim()
local there, first = found(base, n)
if #there < n then
  giveBack(there)
  return told(0)
end
local ends = now + lease + 1
if lease > 0 and first < ends then
  put(base, n, ends)
end
return told(1)
