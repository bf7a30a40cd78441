-- fairpermits/abandon: end a hold for good, whether it was granted, waiting, or neither.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  prefix of the channels of clients with waiters
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  ended
--          0  no such hold
-- Caller   an abandoned acquire; the release of a hold whose acquire may have copies
--          under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   The ZREM changes nothing, but lets the writes after it pass on a server at its
--          memory limit.

-- include permitqueue
local tombstone = KEYS[6]
local id, keep, term, channels, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
redis.call('zrem', ends, '')
if keep ~= '0' then
  redis.call('set', tombstone, 1, 'px', keep)
end
reap(term)
quit(id)
local reply = 0
if live(id) then
  reply = redis.call('hexists', state, id)
  finish(id)
end
wake(channels, how, term)
return told(reply)
