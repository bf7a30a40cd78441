-- queue/force_unlock: end all holds of one mode, or only a given hold. Live waiters keep
-- their places.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- ARGV[1]  id of the hold to end, or '' for any
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  prefix of the channels of clients with waiters
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- ARGV[6]  channel of observers of an election; absent for a lock
-- Reply    1  ended
--          0  there was no such hold
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With a hold id: the hold is gone, nothing happens. Without one a copy would
--          end a newer hold, which is why this request is sent only once.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include queue
local id, mode, term, channels, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
redis.call('hdel', holders, '')
reap(term)
local reply = 0
if mode == 'exclusive' then
  if live(mode) and (id == '' or held(mode, id)) then
    finish(mode)
    reply = 1
  end
elseif id ~= '' then
  if held(mode, id) then
    finish(id)
    reply = 1
  end
else
  -- All shared holds by one command: there may be very many. The exclusive hold remains.
  local at = redis.call('zscore', ends, 'exclusive')
  local hash = redis.call('hmget', holders, 'exclusive', 'count', 'token')
  local ttl = redis.call('pttl', holders)
  if current() > (live('exclusive') and 1 or 0) then
    redis.call('del', holders, ends)
    leaves(false, -math.huge)
    reply = 1
    if at then
      redis.call('zadd', ends, at, 'exclusive')
      redis.call('hset', holders, 'exclusive', hash[1], 'count', hash[2], 'token', hash[3])
      lengthen(holders, ttl)
      lengthen(ends, ttl)
    end
  end
end
wake(channels, how, ARGV[6])
return told(reply)
