-- rw/write_detach: note that the writer has left its hold for whoever adopts it.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the write hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms: longer than the lease of the hold
-- Reply    as lock/detach
-- Caller   Detach
-- Twice    As lock/detach.
-- Memory   As lock/detach.
-- Replica  As lock/detach.

-- include sides
-- include adoption
local lock, tombstone = KEYS[1], KEYS[2]
local id, keep = ARGV[1], ARGV[2]
redis.call('hdel', lock, '')
if redis.call('hexists', lock, id .. ':write') == 1 then
  return detached(tombstone, keep, 1)
end
return detached(tombstone, keep, absent(lock, id))
