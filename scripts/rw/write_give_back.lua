-- rw/write_give_back: undo an adoption of a write hold, whatever became of its requests.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the write hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new one
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  time to keep the tombstone of the new one, ms
-- Reply    1  as lock/give_back; rw/write_abandon ends what may remain
-- Caller   an Adopt that was given up
-- Twice    As lock/give_back.
-- Memory   As lock/give_back.

-- include adoption
local lock, tombstone, own = KEYS[1], KEYS[2], KEYS[3]
local id, old, keep = ARGV[1], ARGV[2], ARGV[3]
redis.call('hdel', lock, '')
withdrawn(own, keep)
if redis.call('hexists', lock, id .. ':write') == 1 then
  local rest, entries = undone(tombstone, id)
  if rest > 0 then
    redis.call('hset', lock, old .. ':write', entries)
    redis.call('hdel', lock, id .. ':write')
    redis.call('pexpire', lock, rest)
  end
end
return 1
