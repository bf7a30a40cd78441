-- lock/asked: whether the holder of a lock was asked to release it.
--
-- KEYS[1]  the key that says so, of one hold
-- Reply    1 or 0
-- Caller   the watchdog, for a holder that has called ReleaseRequested: all types; of a
--          RedLock, on all nodes
-- Twice    Reads only.

return redis.call('exists', KEYS[1])
