-- queue/abandon: end a hold for good, whether it was granted, waiting, or neither.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- KEYS[7]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[3]  'exclusive' or 'shared'
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  prefix of the channels of clients with waiters
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- ARGV[7]  channel of observers of an election; absent for a lock
-- Reply    1  ended
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   an abandoned acquire; the last release of a hold whose first acquire
--          may have copies under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   The HDEL changes nothing, but lets the writes after it pass on a
--          server at its memory limit.
-- Foreign  The tombstone is set even if other data is at the key of the lock, which may be gone
--          when a late copy comes.

-- include queue
local tombstone = KEYS[7]
local id, keep, mode, term = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channels, how = ARGV[5], ARGV[6]
local wrong = redis.pcall('hdel', holders, '')
if keep ~= '0' then
  redis.call('set', tombstone, 1, 'px', keep)
end
if type(wrong) == 'table' then
  return wrong
end
reap(term)
quit(id)
local reply = 1
if held(mode, id) then
  finish(mode == 'exclusive' and mode or id)
else
  reply = -others(mode, id)
end
wake(channels, how, ARGV[7])
return told(reply)
