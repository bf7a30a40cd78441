-- rw/read_reenter: raise the count of a read hold that its owner has.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  timer of the first entry
-- KEYS[3]  timer of this entry
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  entries wanted
-- Reply    1  held
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   Lock, TryLock of a ReadLock
-- Twice    The count is absolute, and leases only grow. This script never creates a hold.
-- Memory   See rw/read_enter.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include ttl
-- include sides
local lock, first, this = KEYS[1], KEYS[2], KEYS[3]
local id, lease, timers, entries = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local was = redis.call('hget', lock, id)
if not was or redis.call('pttl', first) <= 0 then
  return absent(lock, id)
end
if redis.call('pttl', this) < lease then
  redis.call('set', this, 1, 'px', lease)
end
redis.call('hset', lock, id, entries)
for i = tonumber(entries) + 1, tonumber(was) do -- timers of a release that was not answered
  drop(timers, id, i)
end
lengthen(first, lease)
lengthen(lock, redis.call('pttl', first)) -- see rw/read_renew, lease 0
return 1
