-- fair/abandon: end a hold for good, whatever became of its requests: it leaves
-- the line, and the lock if that is its own.
--
-- KEYS[1..5]  see shared/line.lua
-- KEYS[6]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed, no copy of the
--          hold's requests is under way
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  what a waiter's channel begins with
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the lock was this hold's; freed
--          0  no such lock
--          -1 another's lock
-- Caller   an acquire that was given up, and the last release of a hold whose
--          first acquire has copies under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   The HDEL lets the rest pass on a server at its memory limit: Redis
--          refuses SET and ZADD only as the first write of a script.

-- include line
local tombstone = KEYS[6]
local id, keep, term, channels, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local reply = 1
redis.call('hdel', lock, '')
if keep ~= '0' then
  redis.call('set', tombstone, 1, 'px', keep)
end
if redis.call('zscore', deadlines, id) or redis.call('zscore', alive, id) or torn() then
  leave(id)
end
if redis.call('hexists', lock, id) == 0 then
  reply = -redis.call('exists', lock)
else
  redis.call('del', lock)
end
sweep('', term)
tell('', term, channels, how)
return told(reply)
