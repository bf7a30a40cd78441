-- fair_abandon: end a stay for good, whatever became of its requests: it leaves
-- the line, and the lock if it holds it.
--
-- KEYS[1..5], ARGV[1..3]  see shared/fair.lua
-- KEYS[6]  tombstone of this stay
-- ARGV[4]  stay id
-- ARGV[5]  time to keep the tombstone, ms; 0: none is needed, no copy of the
--          stay's requests is under way
-- Reply    1  the stay held the lock; freed
--          0  no such lock
--          -1 another's lock
-- Caller   an acquire that was given up, and the last release of a stay whose
--          first acquire has copies under way
-- Twice    A second run finds the stay gone and lengthens the tombstone.
-- Memory   The HDEL lets the rest pass on a server at its memory limit: Redis
--          refuses SET and ZADD only as the first write of a script.

-- include announce
-- include signs
-- include fair
local stay, reply = ARGV[4], 1
redis.call('hdel', lock, '')
if ARGV[5] ~= '0' then
  redis.call('set', KEYS[6], 1, 'px', ARGV[5])
end
if redis.call('zscore', deadlines, stay) or redis.call('zscore', alive, stay) or torn() then
  leave(stay)
end
if redis.call('hexists', lock, stay) == 0 then
  reply = -redis.call('exists', lock)
else
  redis.call('del', lock)
end
sweep('')
tell('')
return reply
