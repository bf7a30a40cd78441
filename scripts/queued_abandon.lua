-- queued_abandon: end a stay for good, however far it got: held, waiting, or
-- nothing yet.
--
-- KEYS[1] to KEYS[6]  see queued
-- KEYS[7]  tombstone of this stay
-- ARGV[1]  stay id
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  what the channel of a waiter begins with
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the stay had a hold; ended
--          0  no such hold
--          -1 no such hold, others have the lock
-- Caller   an acquire that was given up, and the last release of a stay whose
--          first acquire has copies under way
-- Twice    A second run finds the stay gone and lengthens the tombstone.
-- Memory   The HDEL changes nothing, but lets the writes after it pass on a
--          server at its memory limit.

-- include announce
-- include signs
-- include queued
local stay, mode = ARGV[1], ARGV[2]
redis.call('hdel', holders, '')
if ARGV[3] ~= '0' then
  redis.call('set', KEYS[7], 1, 'px', ARGV[3])
end
reap(tonumber(ARGV[4]))
quit(stay)
local reply = 1
if held(mode, stay) then
  finish(mode == 'exclusive' and mode or stay)
else
  reply = -others(mode, stay)
end
wake(ARGV[5], ARGV[6])
return reply
