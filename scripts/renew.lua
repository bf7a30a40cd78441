-- renew: lengthen the lease of a hold, if it is still there.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id
-- ARGV[2]  lease, ms
-- Reply    1  held, for at least the lease from now
--          0  no such lock
--          -1 another's lock
-- Caller   the watchdog, Extend
-- Twice    A lease only grows, and is never created here.
-- Replica  "Not there" must come from a master. The HDEL changes nothing, but a
--          demoted master, whose data may be old, refuses it with READONLY.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  redis.call('hdel', KEYS[1], '')
  return -redis.call('exists', KEYS[1])
end
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return 1
