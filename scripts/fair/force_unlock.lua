-- fair/force_unlock: free a lock, no matter who holds it, or only if a given hold has it. Live
-- waiters keep their places.
--
-- KEYS[1..5]  see shared/linekeys.lua
-- ARGV[1]  id of the hold to end, or '' for any
-- ARGV[2]  waiter lease, ms
-- ARGV[3]  prefix of the waiters' channels
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  freed
--          0  was not held (by that hold)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With a hold id: the hold is gone, only the line is swept. Without one a copy
--          would end a newer hold, which is why this request is sent only once.
-- Replica  A demoted master, whose data may be old, refuses DEL and HDEL.

-- include line
-- include whole
local id, term, channels, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local _, reply = freeable(lock, false)
if reply then
  return reply
end
-- As lock/force_unlock.
reply = id == '' and redis.call('del', lock) or redis.call('hdel', lock, names(id) and id or '')
sweep('', term)
tell('', term, channels, how)
return told(reply)
