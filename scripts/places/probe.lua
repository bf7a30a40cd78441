-- places/probe: whether a DoubleBarrier has members in it, and whether a hold is one of them.
--
-- KEYS[1..2]  see shared/places.lua
-- ARGV[1]  hold id, or ''
-- Reply    {held, entries}: 1 if it has members in it, else 0; 1 if the hold is one, else 0
-- Caller   IsLocked, HoldCount
-- Twice    Reads only.

-- include places
return {others(), held(ARGV[1]) and 1 or 0}
