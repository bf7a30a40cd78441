-- rw/write_reenter: raise the count of a write hold that its owner has.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  entries wanted
-- Reply    1  held
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   Lock, TryLock of a WriteLock
-- Twice    The count is absolute, and the lease only grows. This script never creates a
--          hold.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include ttl
-- include sides
local lock = KEYS[1]
local id, lease, entries = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local writer = id .. ':write'
if redis.call('hexists', lock, writer) == 0 then
  return absent(lock, id)
end
redis.call('hset', lock, writer, entries)
lengthen(lock, lease)
return 1
