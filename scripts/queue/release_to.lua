-- queue/release_to: end an exclusive hold, and make a waiter of its client the holder in the
-- same step, if it is the next in the queue.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- KEYS[7]  fencing clock of the lock
-- KEYS[8]  tombstone of the waiter's hold
-- KEYS[9]  lock hash of the types that Redisson has too
-- KEYS[10]  ends of the other type with a queue
-- ARGV[1]  hold id
-- ARGV[2]  id of the waiter, which waits for an exclusive hold
-- ARGV[3]  its lease, ms
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  prefix of the channels of clients with waiters
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    token  ended, and the waiter holds the lock with that token
--          -token  there is no such hold, and the waiter holds the lock
--          1, 0, -1  see queue/release: the waiter does not hold it
-- Caller   Unlock
-- Twice    Only the run that ends the hold makes the waiter the holder, so a late copy does
--          nothing for a waiter that has left or waits for another holder. A second run
--          that finds the waiter there lengthens its lease, as a copy of its own request
--          does: who waits for the answer may count from the time of sending. A tombstone
--          stops a copy that meets older data, as after a failover.
-- Memory   The ZREM or HDEL that comes first is never refused, and lets the writes after it
--          pass on a server at its memory limit.
-- Replica  "No such hold" must come from a master: see lock/release.
--
-- Whoever asks knows that the waiter is alive. If anybody else is in front of it in the
-- queue, dead or alive, this is queue/release, which wakes the next one.

-- include token
-- include queuekeys
-- include signs
local tokens, tombstone, otherHash, otherEnds = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local id, waiter, lease, term = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channels, how = ARGV[5], ARGV[6]

local line = redis.call('zrange', alone, '0', '1') -- the head, and who is behind it

-- Whether the waiter can enter when the hold has ended. Most often there is none of these, and
-- one command tells.
local isNext = line[1] == waiter
if isNext and redis.call('exists', together, tombstone, otherHash, otherEnds) > 0 then
  local reader = redis.call('zrange', together, 0, 0, 'withscores')
  isNext = (not reader[1] or tonumber(reader[2]) > tonumber(redis.call('zscore', alone, waiter))) and
    redis.call('exists', tombstone, otherHash) == 0 and
    redis.call('zcount', otherEnds, whole(now), '+inf') == 0
end

-- Whether the hold is there, and no other, be it an expired one.
local hold = isNext and redis.call('zrange', ends, '0', '1', 'withscores')
if hold and #hold == 2 and hold[1] == 'exclusive' and tonumber(hold[2]) >= now and
  redis.call('hget', holders, 'exclusive') == id then
  redis.call('zrem', alone, waiter)
  local token = drawToken(tokens, clock, digits)
  redis.call('hset', holders, 'exclusive', waiter, 'count', '1', 'token', whole(token))
  redis.call('zadd', ends, whole(now + lease), 'exclusive')
  redis.call('pexpire', holders, lease) -- of the only hold
  redis.call('pexpire', ends, lease)
  -- Who is behind it has a sign of life too. If an eviction has taken that away, the notes
  -- remain until it gives another or is removed.
  signs = line[2] and 2 or 0
  unsign(alive, notes, waiter)
  return token
end

-- include queue
redis.call('hdel', holders, '')
local holds = held('exclusive', id)
if not holds and held('exclusive', waiter) then
  prolong('exclusive', tonumber(lease))
  return -tonumber(redis.call('hget', holders, 'token'))
end
reap(term)
local reply = 1
if holds then
  finish('exclusive')
else
  reply = -others('exclusive', id)
end
wake(channels, how)
return told(reply)
