-- inspect: one consistent look at a lock.
--
-- KEYS[1]  lock hash
-- Reply    {pttl, field, value, field, value, ...}; pttl -2: free, -1: no TTL
-- Caller   IsLocked, State, HeldBy
-- Twice    Reads only.
local reply = redis.call('hgetall', KEYS[1])
table.insert(reply, 1, redis.call('pttl', KEYS[1]))
return reply
