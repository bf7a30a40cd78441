-- lock/detach: note that the holder has left its hold for whoever adopts it.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of the hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms: longer than the lease of the hold
-- Reply    1  the hold is there
--          0  no such lock
--          -1 held by others
--          -2 another client has adopted the hold
-- Caller   Detach
-- Twice    The id is never used again. After an adoption a copy says what the holder before
--          says then too: that it has left.
-- Memory   The HDEL lets the SET pass on a server at its memory limit.
-- Replica  "Not there" must come from a master: see lock/release.

-- include adoption
local lock, tombstone = KEYS[1], KEYS[2]
local id, keep = ARGV[1], ARGV[2]
redis.call('hdel', lock, '')
if redis.call('hexists', lock, id) == 1 then
  return detached(tombstone, keep, 1)
end
return detached(tombstone, keep, -redis.call('exists', lock))
