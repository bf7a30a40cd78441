-- fair_force_unlock: free a lock whoever holds it, or only if a given owner does.
-- The line stays as it is.
--
-- KEYS[1..5], ARGV[1..3]  see shared/fair.lua
-- ARGV[4]  stay id of the holder meant, or '' for any
-- Reply    1  freed
--          0  was not held (by that owner)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: it is gone, the line is swept. Without: a copy frees
--          whoever has taken the lock since; that is what "force" means, and
--          why this request is sent once only.
-- Replica  A demoted master, whose data may be old, refuses the HDEL.

-- include announce
-- include signs
-- include fair
-- include holders
local owner, reply = ARGV[4], foreign(redis.call('hgetall', lock))
if reply then
  return reply
end
reply = 0
redis.call('hdel', lock, '')
if owner == '' or redis.call('hexists', lock, owner) == 1 then
  reply = redis.call('del', lock)
end
sweep('')
tell('')
return reply
