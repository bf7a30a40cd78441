-- queued_force_unlock: end all holds of one mode, or only that of a given owner.
-- The queue stays.
--
-- KEYS[1] to KEYS[6]  see queued
-- ARGV[1]  stay id of the holder meant, or '' for any
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

-- include announce
-- include signs
-- include queued
local owner, mode = ARGV[1], ARGV[2]
redis.call('hdel', holders, '')
reap(tonumber(ARGV[3]))
local reply = 0
if mode == 'exclusive' then
  if live(mode) and (owner == '' or held(mode, owner)) then
    finish(mode)
    reply = 1
  end
elseif owner ~= '' then
  if held(mode, owner) then
    finish(owner)
    reply = 1
  end
else
  -- All at once: there may be very many. What the exclusive hold has, stays.
  local at = redis.call('zscore', ends, 'exclusive')
  local hash = redis.call('hmget', holders, 'exclusive', 'count', 'token')
  local rest = redis.call('pttl', holders)
  local standing = redis.call('zcount', ends, string.format('%.0f', now), '+inf')
  if standing > (live('exclusive') and 1 or 0) then
    redis.call('del', holders, ends)
    gone(false, -math.huge)
    reply = 1
    if at then
      redis.call('zadd', ends, at, 'exclusive')
      redis.call('hset', holders, 'exclusive', hash[1], 'count', hash[2], 'token', hash[3])
      grow(holders, rest)
      grow(ends, rest)
    end
  end
end
wake(ARGV[4], ARGV[5])
return reply
