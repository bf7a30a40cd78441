-- queue/release: lower the count of a hold, or end it and wake the waiters that can enter
-- then.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- ARGV[1]  hold id
-- ARGV[2]  entries that remain; 0 ends the hold
-- ARGV[3]  'exclusive' or 'shared'
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  prefix of the channels of clients with waiters
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- ARGV[7]  channel of observers of an election; absent for a lock
-- Reply    2  count lowered
--          1  ended
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the first full release the hold id is
--          gone and never used again, so a copy finds nothing to do.
-- Memory   The HDEL changes nothing, but lets the writes after it pass on a server at its
--          memory limit.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include queue
local id, entries, mode, term = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channels, how = ARGV[5], ARGV[6]
local exclusive = mode == 'exclusive'
redis.call('hdel', holders, '')
reap(term)
local reply = 1
if not held(mode, id) then
  reply = -others(mode, id)
elseif entries ~= '0' then
  redis.call('hset', holders, exclusive and 'count' or id, entries)
  reply = 2
else
  finish(exclusive and mode or id)
end
wake(channels, how, ARGV[7])
return told(reply)
