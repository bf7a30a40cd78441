-- fair/force_unlock: free a lock whoever holds it, or only if a given owner does.
-- The line remains as it is.
--
-- KEYS[1..5]  see shared/line.lua
-- ARGV[1]  hold id meant, or '' for any
-- ARGV[2]  waiter lease, ms
-- ARGV[3]  what a waiter's channel begins with
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  freed
--          0  was not held (by that owner)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: it is gone, the line is swept. Without: a copy frees
--          whoever has taken the lock since; that is what "force" means, and
--          why this request is sent once only.
-- Replica  A demoted master, whose data may be old, refuses the HDEL.

-- include line
-- include hash
local id, term, channels, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local reply = foreign(redis.call('hgetall', lock))
if reply then
  return reply
end
reply = 0
redis.call('hdel', lock, '')
if id == '' or redis.call('hexists', lock, id) == 1 then
  reply = redis.call('del', lock)
end
sweep('', term)
tell('', term, channels, how)
return told(reply)
