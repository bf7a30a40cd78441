-- clock/split: in cluster mode, keep scripts from drawing tokens from the one fencing clock.
--
-- KEYS[1]  the one fencing clock: a string, or the hash that it becomes; its field 'floor' is the
--          last token that it gave
-- Reply    {floor, now}  µs; floor is 0 if it never gave any
-- Caller   the first acquire of a client
-- Twice    The second run finds the hash.
-- Memory   At its memory limit Redis refuses the first write of a script, but not DEL and HDEL.
-- Replica  The floor must come from a master: HDEL is a write, though it finds nothing.
-- include time

local one = KEYS[1]
local last = redis.pcall('get', one)
local now = micros()
if type(last) == 'table' then -- of another type
  redis.call('hdel', one, '')
  return {tonumber(redis.call('hget', one, 'floor')) or 0, now}
end
redis.call('del', one)
redis.call('hset', one, 'floor', last or '0')
return {tonumber(last or 0), now}
