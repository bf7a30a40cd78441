-- queue/force_unlock: end all holds of one mode, or only that of a given owner.
-- The queue remains.
--
-- KEYS[1] to KEYS[6]  see shared/queue.lua
-- ARGV[1]  hold id meant, or '' for any
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  what the channel of a waiter begins with
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  ended
--          0  there was no such hold
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: its hold is gone, nothing happens. Without: a copy
--          ends whatever hold has been taken since; that is what "force" means,
--          and why this request is sent once only.
-- Replica  "No such hold" must come from a master: a demoted one refuses the
--          HDEL with READONLY.

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
  -- All at once: there may be very many. What the exclusive hold has, remains.
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
wake(channels, how)
return told(reply)
