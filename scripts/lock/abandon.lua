-- lock/abandon: end a hold for good, no matter which of its requests ran.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  the waiter that stands by: see lock/stand_by; absent for types without it
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the lock was this hold's; freed
--          0  no such lock
--          -1 held by others
-- Caller   an abandoned acquire; the last release of a hold whose first acquire
--          may have copies under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   The HDEL lets the SET pass on a server at its memory limit: Redis
--          refuses SET only as the first write of a script.
-- Foreign  The tombstone is set even if other data is at the key of the lock, which may be gone
--          when a late copy comes.

-- include publish
local lock, tombstone, standing = KEYS[1], KEYS[2], KEYS[3]
local id, keep, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local freed = redis.pcall('hdel', lock, id)
redis.call('set', tombstone, 1, 'px', keep)
if type(freed) == 'table' then
  return freed
end
local who = standing and redis.call('get', standing)
if who and who:sub(1, #id + 1) == id .. ' ' then
  redis.call('del', standing)
end
if freed == 0 then
  return -redis.call('exists', lock)
end
announce(how, channel, '0')
return told(1)
