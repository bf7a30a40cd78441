-- inspect: one consistent look at a lock.
--
-- KEYS[1]  lock hash
-- KEYS[2]  Redisson's token counter, if the lock has one
-- Reply    {pttl, token, field, value, field, value, ...}; pttl -2: free, -1: no
--          TTL; the token is 0 if there is no counter
-- Caller   State, Watch, CurrentToken
-- Twice    Reads only.

-- include holders
local fields = redis.call('hgetall', KEYS[1])
local reply = foreign(fields)
if reply then
  return reply
end
reply = plainly(fields)
table.insert(reply, 1, redis.call('pttl', KEYS[1]))
table.insert(reply, 2, KEYS[2] and tonumber(redis.call('get', KEYS[2])) or 0)
return reply
