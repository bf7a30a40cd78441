-- queue/give_back: undo an adoption, whatever became of its requests.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- KEYS[3]  tombstone of the hold: see shared/adoption.lua
-- KEYS[4]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  time to keep the tombstone of the new id, ms
-- ARGV[4]  'exclusive' or 'shared'
-- Reply    1  as lock/give_back; queue/abandon ends what may remain
-- Caller   an Adopt that was given up
-- Twice    As lock/give_back.
-- Memory   As lock/give_back.

-- include queue
-- include adoption
local tombstone, own = KEYS[3], KEYS[4]
local id, old, keep, mode = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
redis.call('hdel', holders, '')
withdrawn(own, keep)
if held(mode, id) then
  local rest, entries = undone(tombstone, id)
  if rest > 0 and mode == 'exclusive' then
    redis.call('hset', holders, 'exclusive', old, 'count', entries)
    redis.call('zadd', ends, whole(now + rest - 1), mode)
  elseif rest > 0 then
    redis.call('hset', holders, old, entries)
    redis.call('zadd', ends, whole(now + rest - 1), old)
    redis.call('zrem', ends, id)
    redis.call('hdel', holders, id)
  end
end
return 1
