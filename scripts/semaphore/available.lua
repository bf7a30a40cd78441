-- semaphore/available: how many permits are free.
--
-- KEYS[1]  free permits, a number
-- Reply    the number; 0 if none were set
-- Caller   Available of a Semaphore
-- Twice    Reads only.

-- include count
local free, foreign = count(KEYS[1])
return foreign or free or 0
