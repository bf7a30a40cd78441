-- queue/detach: note that the holder has left its hold for whoever adopts it.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- KEYS[3]  tombstone of the hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms: longer than the lease of the hold
-- ARGV[3]  'exclusive' or 'shared'
-- Reply    as lock/detach
-- Caller   Detach
-- Twice    As lock/detach.
-- Memory   As lock/detach.
-- Replica  As lock/detach.

-- include queue
-- include adoption
local tombstone, id, keep, mode = KEYS[3], ARGV[1], ARGV[2], ARGV[3]
redis.call('hdel', holders, '')
return detached(tombstone, keep, held(mode, id) and 1 or -others(mode, id))
