-- places/force_unlock: end the generation of a DoubleBarrier, or one hold. Those that wait
-- keep their places.
--
-- KEYS[1..2]  see shared/places.lua
-- ARGV[1]  id of the hold to end, or '' for all
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  ended
--          0  there was no such hold
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With a hold id: the hold is gone, nothing happens. Without one a copy would
--          end a newer generation, which is why this request is sent only once.
-- Replica  "No such hold" must come from a master: see places/release.

-- include places
local id, channel, how = ARGV[1], ARGV[2], ARGV[3]
redis.call('zrem', places, '')
local reply = id == '' and others() or held(id) and 1 or 0
if reply == 1 then
  if id == '' then
    redis.call('del', places)
  else
    redis.call('zrem', places, id)
  end
end
settle(channel, how)
return told(reply)
