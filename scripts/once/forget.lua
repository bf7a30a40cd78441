-- once/forget: delete the result of a Once.
--
-- KEYS[1]  result: see once/peek
-- Reply    1  there was one
--          0  there was none
-- Caller   Forget
-- Twice    A copy would delete a newer result, which is why this request is sent only once.
-- Replica  "None" must come from a master: a demoted master, whose data may be old, refuses the
--          DEL with READONLY.

local was = redis.call('hexists', KEYS[1], 'value')
redis.call('del', KEYS[1])
return was
