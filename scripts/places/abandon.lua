-- places/abandon: leave a DoubleBarrier for good, or give up the wait for it.
--
-- KEYS[1..2]  see shared/places.lua
-- KEYS[3]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  left
--          0  no such hold
--          -1 no such hold, but others are in
-- Caller   an abandoned Enter; the release of a hold whose Enter may have copies under way
-- Twice    A second run finds the place gone and lengthens the tombstone.
-- Memory   The ZREM comes first, and lets the SET pass on a server at its memory limit.

-- include places
local tombstone = KEYS[3]
local id, keep, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local mine = held(id)
redis.call('zrem', places, id)
if keep ~= '0' then
  redis.call('set', tombstone, 1, 'px', keep)
end
local reply = mine and 1 or -others()
settle(channel, how)
return told(reply)
