-- queued_release: lower the count of a hold, or end it and wake those who can
-- enter then.
--
-- KEYS[1] to KEYS[6]  see queued
-- ARGV[1]  stay id
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  entries that remain; 0 ends the hold
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  what the channel of a waiter begins with
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    2  count lowered
--          1  ended
--          0  no such hold
--          -1 no such hold, others have the lock
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the first full release the stay id is
--          gone and never used again, so a copy finds nothing to do.
-- Memory   The HDEL changes nothing, but lets the writes after it pass on a
--          server at its memory limit.
-- Replica  "No such hold" must come from a master: a demoted one refuses the
--          HDEL with READONLY.

-- include announce
-- include signs
-- include queued
local stay, mode = ARGV[1], ARGV[2]
local exclusive = mode == 'exclusive'
redis.call('hdel', holders, '')
reap(tonumber(ARGV[4]))
local reply = 1
if not held(mode, stay) then
  reply = -others(mode, stay)
elseif ARGV[3] ~= '0' then
  redis.call('hset', holders, exclusive and 'count' or stay, ARGV[3])
  reply = 2
else
  finish(exclusive and mode or stay)
end
wake(ARGV[5], ARGV[6])
return reply
