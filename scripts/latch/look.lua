-- latch/look: the count of a latch.
--
-- KEYS[1]  count; absent: the latch is open
-- Reply    the count; 0 or less if the latch is open
-- Caller   Wait, Count of a CountDownLatch
-- Twice    Changes nothing.
-- Replica  "Open" must come from a master. GETEX, which changes nothing, counts as a write:
--          any other server refuses it.

-- include count
local latch = KEYS[1]
redis.call('getex', latch)
local left, foreign = count(latch)
return foreign or left or 0
