-- lock/give_back: undo an adoption, whatever became of its requests. If the holder before has not
-- heard of it, it has its hold again, as if nothing had been asked.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of the hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  time to keep the tombstone of the new id, ms
-- Reply    1  no late copy adopts the hold. It may have the new id still, if the holder before
--             has left: lock/abandon ends it
-- Caller   an Adopt that was given up
-- Twice    A second run finds the old id in its place, or nothing to undo.
-- Memory   The HDEL, of a field that cannot exist, lets the rest pass on a server at its memory
--          limit.

-- include adoption
local lock, tombstone, own = KEYS[1], KEYS[2], KEYS[3]
local id, old, keep = ARGV[1], ARGV[2], ARGV[3]
redis.call('hdel', lock, '')
withdrawn(own, keep)
if redis.call('hexists', lock, id) == 1 then
  local rest, entries = undone(tombstone, id)
  if rest > 0 then
    redis.call('hset', lock, old, entries)
    redis.call('hdel', lock, id)
    redis.call('pexpire', lock, rest)
  end
end
return 1
