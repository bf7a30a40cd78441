-- places/release: leave a DoubleBarrier.
--
-- KEYS[1..2]  see shared/places.lua
-- ARGV[1]  hold id
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  left
--          0  no such hold
--          -1 no such hold, but others are in
-- Caller   Unlock, Leave
-- Twice    The hold id is gone and never used again, so a copy finds nothing to do.
-- Memory   Removes only.
-- Replica  "No such hold" must come from a master: a demoted master, whose data may be
--          old, refuses the ZREM with READONLY.

-- include places
local id, channel, how = ARGV[1], ARGV[2], ARGV[3]
local mine = held(id)
redis.call('zrem', places, id)
local reply = mine and 1 or -others()
settle(channel, how)
return told(reply)
