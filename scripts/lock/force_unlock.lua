-- lock/force_unlock: free a lock, no matter who holds it, or only if a given hold has it.
--
-- KEYS[1]  lock hash
-- ARGV[1]  id of the hold to end, or '' for any
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  freed
--          0  was not held (by that hold)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With a hold id: the hold is gone, nothing happens. Without one a copy would
--          end a newer hold, which is why this request is sent only once.
-- Replica  "Not there" must come from a master: see lock/release.

-- include publish
-- include whole
local lock = KEYS[1]
local id, channel, how = ARGV[1], ARGV[2], ARGV[3]
local _, reply = freeable(lock, false)
if reply then
  return reply
end
-- A demoted master, whose data may be old, refuses both commands. Only a field that is a hold is deleted: a caller
-- may pass any text as an id.
local freed = id == '' and redis.call('del', lock) or redis.call('hdel', lock, names(id) and id or '')
if freed == 0 then
  return 0
end
announce(how, channel, '0')
return told(1)
