-- lock/asked: whether the holder of a lock was asked to release it.
--
-- KEYS[1]  key of the request to release one hold
-- Reply    1 if the key exists, else 0
-- Caller   the watchdog, for a holder that has called ReleaseRequested: all types; of a
--          RedLock, on all nodes
-- Twice    Reads only.

return redis.call('exists', KEYS[1])
