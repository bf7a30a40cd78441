-- fairpermits/force_unlock: give back the permits of one hold, or of all. Waiters keep their
-- places.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- ARGV[1]  hold id, or '' for all
-- ARGV[2]  waiter lease, ms
-- ARGV[3]  prefix of the channels of clients with waiters
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  given back
--          0  there was no such hold
-- Caller   an operator
-- Twice    With a hold id: the hold is gone, nothing happens. Without one a copy would end
--          newer holds, which is why that request is sent only once.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include permitqueue
local id, term, channels, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
redis.call('zrem', ends, '')
reap(term)
local reply = 0
for _, hold in ipairs(id ~= '' and {id} or redis.call('zrange', ends, 0, -1)) do
  if live(hold) then
    finish(hold)
    reply = 1
  end
end
wake(channels, how, term)
return told(reply)
