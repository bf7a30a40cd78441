-- abandon: end a stay for good, whatever became of its requests.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this stay
-- ARGV[1]  stay id
-- ARGV[2]  time to keep the tombstone, ms
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the stay held the lock; freed
--          0  no such lock
--          -1 another's lock
-- Caller   an acquire that was given up, and the last release of a stay whose
--          first acquire has copies under way
-- Twice    A second run finds the stay gone and lengthens the tombstone.
-- Memory   The DEL lets the SET pass on a server at its memory limit: Redis
--          refuses SET only as the first write of a script.

-- include announce
local lock, stay = KEYS[1], ARGV[1]
redis.call('del', KEYS[2])
redis.call('set', KEYS[2], 1, 'px', ARGV[2])
if redis.call('hexists', lock, stay) == 0 then
  return -redis.call('exists', lock)
end
redis.call('del', lock)
announce(ARGV[4], ARGV[3], '0')
return 1
