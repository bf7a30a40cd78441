-- rw/read_detach: note that a reader has left its hold for whoever adopts it.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the read hold: see shared/adoption.lua
-- KEYS[3]  timer of the first entry of the hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms: longer than the lease of the hold
-- Reply    as lock/detach
-- Caller   Detach
-- Twice    As lock/detach.
-- Memory   As lock/detach.
-- Replica  As lock/detach.

-- include sides
-- include adoption
local lock, tombstone, first = KEYS[1], KEYS[2], KEYS[3]
local id, keep = ARGV[1], ARGV[2]
redis.call('hdel', lock, '')
if redis.call('hexists', lock, id) == 1 and redis.call('pttl', first) > 0 then
  return detached(tombstone, keep, 1)
end
return detached(tombstone, keep, absent(lock, id))
