-- places/probe: whether anybody is in a DoubleBarrier, and whether a hold is.
--
-- KEYS[1..2]  see shared/places.lua
-- ARGV[1]  hold id, or ''
-- Reply    {held, entries}: 1 if anybody is in, else 0; 1 if the hold is
-- Caller   IsLocked, HoldCount
-- Twice    Reads only.

-- include places
return {others(), held(ARGV[1]) and 1 or 0}
