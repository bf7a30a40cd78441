-- fair_inspect: one consistent look at a fair lock and its line.
--
-- KEYS[1]  lock hash
-- KEYS[2]  queue
-- Reply    {pttl, waiters, field, value, ...}; pttl -2: free, -1: no TTL
-- Caller   State, Watch
-- Twice    Reads only.

-- include holders
local fields = redis.call('hgetall', KEYS[1])
local reply = foreign(fields)
if reply then
  return reply
end
reply = plainly(fields)
table.insert(reply, 1, redis.call('pttl', KEYS[1]))
table.insert(reply, 2, redis.call('llen', KEYS[2]))
return reply
