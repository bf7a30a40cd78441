-- rw_read_renew: lengthen the lease of a read hold, if it is still there.
--
-- KEYS[1]  lock hash
-- KEYS[2]  timer of the first entry
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms; 0: only put the time of the hash back to that of the hold,
--          as each renewal does: Redisson's, of a reader, cuts it, whatever
--          others need
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, and others hold the lock
-- Caller   the watchdog, Extend
-- Twice    A lease only grows, and is never created here: a hold without its
--          first timer is over.

-- include rw
local count = redis.call('hget', lock, stay)
local ms = redis.call('pttl', KEYS[2])
if not count or ms <= 0 then
  return absent()
end
local lease = tonumber(ARGV[3])
lengthen(lock, math.max(ms, lease))
if lease == 0 then
  return 1
end
lengthen(KEYS[2], lease)
for i = 2, tonumber(count) do -- for show: the first stands for all
  local key = timer(stay, i)
  if left(key) < lease then
    redis.pcall('pexpire', key, lease)
  end
end
return 1
