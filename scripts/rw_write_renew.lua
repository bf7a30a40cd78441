-- rw_write_renew: lengthen the lease of a write hold, if it is still there.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, and others hold the lock
-- Caller   the watchdog, Extend
-- Twice    A lease only grows, and is never created here.

-- include rw
if redis.call('hexists', lock, writer) == 0 then
  return absent()
end
lengthen(lock, tonumber(ARGV[3]))
return 1
