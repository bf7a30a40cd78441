-- places/left: whether all have left a generation of a DoubleBarrier.
--
-- KEYS[1..2]  see shared/places.lua
-- ARGV[1]  token of the generation
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    {n, rest}  how many are still in; they are out within rest ms, unless they
--                     prolong that
-- Caller   Leave
-- Twice    Only removes what is over.
-- Replica  "All have left" must come from a master, and the removal does.

-- include places
local of, channel, how = ARGV[1], ARGV[2], ARGV[3]
settle(channel, how)
if generation() ~= of then
  return told({0, 0})
end
return told({redis.call('zcard', places), last()})
