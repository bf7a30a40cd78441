-- barrier/look: whether a barrier is set.
--
-- KEYS[1]  barrier; absent: it is lifted
-- Reply    1  set
--          0  lifted
-- Caller   Wait, IsSet of a Barrier
-- Twice    Changes nothing.
-- Replica  "Lifted" must come from a master. GETEX, which changes nothing, counts as a
--          write: any other server refuses it.

return redis.call('getex', KEYS[1]) and 1 or 0
