-- rw_write_reenter: raise the count of a write hold that its owner has.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- ARGV[4]  count wanted
-- Reply    {1, 0}     entered again
--          {-2, 0|1}  the write hold is gone (1: others hold the lock)
-- Caller   Lock, TryLock of a WriteLock
-- Twice    The count is absolute, and the lease only grows. It never creates a
--          hold.

-- include rw
if redis.call('hexists', lock, writer) == 0 then
  return {-2, -absent()}
end
redis.call('hset', lock, writer, ARGV[4])
lengthen(lock, tonumber(ARGV[3]))
return {1, 0}
