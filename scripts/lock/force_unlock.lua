-- lock/force_unlock: free a lock whoever holds it, or only if a given owner does.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id meant, or '' for any
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  freed
--          0  was not held (by that owner)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: it is gone, nothing happens. Without: a copy frees
--          whoever has taken the lock since; that is what "force" means, and
--          why this request is sent once only.

-- include publish
-- include hash
local lock = KEYS[1]
local id, channel, how = ARGV[1], ARGV[2], ARGV[3]
local reply = foreign(redis.call('hgetall', lock))
if reply then
  return reply
end
if id ~= '' and redis.call('hexists', lock, id) == 0 then
  redis.call('hdel', lock, '') -- a demoted master refuses: its data may be old
  return 0
end
if redis.call('del', lock) == 0 then
  return 0
end
announce(how, channel, '0')
return told(1)
