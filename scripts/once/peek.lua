-- once/peek: the result of a Once.
--
-- KEYS[1]  result: see once/enter
-- Reply    {1, 0, value}  the result
--          {0, 0}         there is none
-- Caller   Peek
-- Twice    Reads only.

local value = redis.call('hget', KEYS[1], 'value')
if value then
  return {1, 0, value}
end
return {0, 0}
