-- fairpermits/release: give back the permits of a hold, and wake the first waiter if there is
-- room for it.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- ARGV[1]  hold id
-- ARGV[2]  waiter lease, ms
-- ARGV[3]  prefix of the channels of clients with waiters
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  given back
--          0  no such hold
-- Caller   Unlock, Shutdown
-- Twice    After the first run the hold id is gone, and it is never used again.
-- Memory   The ZREM changes nothing, but lets the writes after it pass on a server at its
--          memory limit.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include permitqueue
local id, term, channels, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
redis.call('zrem', ends, '')
reap(term)
local reply = 0
if live(id) then
  reply = redis.call('hexists', state, id)
  finish(id)
end
wake(channels, how, term)
return told(reply)
