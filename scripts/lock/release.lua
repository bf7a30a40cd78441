-- lock/release: lower the count of a hold, or end it and wake the waiters.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id
-- ARGV[2]  entries that remain; 0 frees the lock
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    2  count lowered
--          1  freed; {1, n} if n connections listen: see shared/publish.lua
--          0  no such lock
--          -1 held by others
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the first full release the hold id is
--          gone and never used again, so a copy finds nothing to do.
-- Memory   At its memory limit Redis refuses HSET only as the first write of a script.
--          HDEL, of a field that cannot exist, comes before it and changes nothing.
-- Replica  "Not there" must come from a master: a demoted master, whose data may be
--          old, refuses the HDEL with READONLY.

-- include publish
local lock = KEYS[1]
local id, entries, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('hexists', lock, id) == 0 then
  redis.call('hdel', lock, '')
  return -redis.call('exists', lock)
end
if entries ~= '0' then
  redis.call('hdel', lock, '')
  redis.call('hset', lock, id, entries)
  return 2
end
-- Not HDEL: Redisson's release deletes the hash too, with what others may have put there.
redis.call('del', lock)
return told(1, announce(how, channel, '0'))
