-- rw_read_reenter: raise the count of a read hold that its owner has.
--
-- KEYS[1]  lock hash
-- KEYS[2]  timer of the first entry
-- KEYS[3]  timer of this entry
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- ARGV[4]  count wanted
-- Reply    {1, 0}     entered again
--          {-2, 0|1}  the read hold is gone (1: others hold the lock)
-- Caller   Lock, TryLock of a ReadLock
-- Twice    The count is absolute, and leases only grow. It never creates a hold.
-- Memory   As in rw_read_enter.

-- include rw
local lease, count = tonumber(ARGV[3]), tonumber(ARGV[4])
local was = redis.call('hget', lock, stay)
if not was or redis.call('pttl', KEYS[2]) <= 0 then
  return {-2, -absent()}
end
if redis.call('pttl', KEYS[3]) < lease then
  redis.call('set', KEYS[3], 1, 'px', lease)
end
redis.call('hset', lock, stay, ARGV[4])
for i = count + 1, tonumber(was) do -- of a release that was not answered
  drop(i)
end
lengthen(KEYS[2], lease)
lengthen(lock, redis.call('pttl', KEYS[2])) -- see rw_read_renew, lease 0
return {1, 0}
