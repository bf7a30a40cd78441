-- rw/read_renew: lengthen the lease of a read hold, if it is still there.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  timer of the first entry
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only put the time of the hash back to that of the hold,
--          as each renewal does: Redisson's, of a reader, cuts it, whatever
--          others need
-- ARGV[3]  what the names of timers begin with
-- Reply    1  held, for at least the lease from now
--          0  no such hold
--          -1 no such hold, and others hold the lock
-- Caller   the watchdog, Extend
-- Twice    A lease only grows, and is never created here: a hold without its
--          first timer is over.

-- include ttl
-- include sides
local lock, first = KEYS[1], KEYS[2]
local id, lease, timers = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local count = redis.call('hget', lock, id)
local ms = redis.call('pttl', first)
if not count or ms <= 0 then
  return absent(lock, id)
end
lengthen(lock, math.max(ms, lease))
if lease == 0 then
  return 1
end
lengthen(first, lease)
for i = 2, tonumber(count) do -- for show: the first stands for all
  local key = timer(timers, id, i)
  if left(lock, key) < lease then
    redis.pcall('pexpire', key, lease)
  end
end
return 1
