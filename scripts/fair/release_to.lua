-- fair/release_to: end a hold, and make a waiter of its client the holder in the same step,
-- if it is the head of the line.
--
-- KEYS[1..5]  see shared/linekeys.lua
-- KEYS[6]  fencing clock of the lock
-- KEYS[7]  tombstone of the waiter's hold
-- ARGV[1]  hold id
-- ARGV[2]  id of the waiter
-- ARGV[3]  its lease, ms
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  prefix of the waiters' channels
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    see queue/release_to
-- Caller   Unlock
-- Twice    See queue/release_to. A second run replies another token, which is higher.
-- Memory   Redis never refuses the HDEL, and it lets the writes after it pass on a server at
--          its memory limit.
-- Replica  "Not there" must come from a master: see lock/release.

-- include token
-- include linekeys
-- include signs
local tokens, tombstone = KEYS[6], KEYS[7]
local id, waiter, lease, term = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channels, how = ARGV[5], ARGV[6]
local holds = redis.call('hdel', lock, id) == 1
local granted
-- What others have put into the hash remains there: the waiter finds that it is no lock.
if holds and redis.call('lindex', queue, '0') == waiter and redis.call('exists', tombstone, lock) == 0 then
  granted = drawToken(tokens, clock, digits)
  redis.call('lpop', queue)
  redis.call('zrem', deadlines, waiter)
  redis.call('hdel', notes, waiter)
  redis.call('hset', lock, waiter, '1')
  redis.call('pexpire', lock, lease)
  -- Most often nobody's sign of life has expired, so nobody is removed; and whoever is the head
  -- now need not be told, as it looks before the lease ends.
  if tonumber(lease) >= term / 3 and not expired(alive, nowText) then
    unsign(alive, notes, waiter)
    return granted
  end
end

-- include line
-- include ttl
if granted then
  first = waiter
  sweep(waiter, term)
  unsign(alive, notes, waiter)
  tell(waiter, term, channels, how, tonumber(lease))
  return told(granted)
end
if not holds and redis.call('hexists', lock, waiter) == 1 then
  local token = drawToken(tokens, clock)
  lengthen(lock, tonumber(lease))
  return -token
end
sweep('', term)
tell('', term, channels, how, holds and -2)
return told(holds and 1 or -redis.call('exists', lock))
