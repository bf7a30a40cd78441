-- lock/detach: note that the holder has left, and the hold waits for whoever adopts it.
--
-- KEYS[1]  tombstone of the hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  time to keep it, ms: longer than the lease of the hold
-- Reply    1
-- Caller   Detach, of all types
-- Twice    The id is never used again. After an adoption a copy says what the holder before
--          says then too: that it has left.
-- Memory   The DEL lets the SET pass on a server at its memory limit.

redis.call('del', KEYS[1])
redis.call('set', KEYS[1], 1, 'px', ARGV[2])
return 1
