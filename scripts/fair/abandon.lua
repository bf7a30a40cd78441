-- fair/abandon: end a hold for good, no matter which of its requests ran. The hold leaves the
-- line, and the lock is freed if the hold has it.
--
-- KEYS[1..5]  see shared/linekeys.lua
-- KEYS[6]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  prefix of the waiters' channels
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the lock was this hold's; freed
--          0  no such lock
--          -1 held by others
-- Caller   an abandoned acquire; the last release of a hold whose first acquire
--          may have copies under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   Redis never refuses the HDEL, and it lets the rest pass on a server at its
--          memory limit: SET and ZADD are refused only as the first write of a script.
-- Foreign  The tombstone is set even if other data is at the key of the lock, which may be gone
--          when a late copy comes.

-- include line
local tombstone = KEYS[6]
local id, keep, term, channels, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local freed = redis.pcall('hdel', lock, id)
if keep ~= '0' then
  redis.call('set', tombstone, 1, 'px', keep)
end
if type(freed) == 'table' then
  return freed
end
freed = freed == 1
if redis.call('zscore', deadlines, id) or redis.call('zscore', alive, id) or torn(total()) then
  leave(id)
end
sweep('', term)
tell('', term, channels, how, freed and -2)
return told(freed and 1 or -redis.call('exists', lock))
