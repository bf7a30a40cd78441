-- fair_release: lower the count of a hold, or end it and wake the head of the
-- line.
--
-- KEYS[1..5], ARGV[1..3]  see shared/fair.lua
-- ARGV[4]  stay id
-- ARGV[5]  hold count that remains; 0 frees the lock
-- Reply    2  count lowered
--          1  freed
--          0  no such lock
--          -1 another's lock
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the first full release the stay id is
--          gone and never used again: a copy only sweeps the line, and may wake
--          its head once more.
-- Memory   The HDEL changes nothing, but lets the HSET pass on a server at its
--          memory limit: Redis refuses that only as the first write of a script.
-- Replica  "Not there" must come from a master: a demoted one, whose data may
--          be old, refuses the HDEL with READONLY.

-- include announce
-- include signs
-- include fair
local stay, reply = ARGV[4], 1
redis.call('hdel', lock, '')
if redis.call('hexists', lock, stay) == 0 then
  reply = -redis.call('exists', lock)
elseif ARGV[5] ~= '0' then
  redis.call('hset', lock, stay, ARGV[5])
  return 2
else
  redis.call('del', lock)
end
sweep('')
tell('')
return reply
