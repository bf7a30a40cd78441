-- lock/release: lower the count of a hold, or end it and wake the waiters.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id
-- ARGV[2]  entries that remain; 0 frees the lock
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    2  count lowered
--          1  freed; {1, n} if n connections got the message: see shared/publish.lua
--          0  no such lock
--          -1 held by others
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the first full release the hold id is
--          gone and never used again, so a copy finds nothing to do.
-- Memory   At its memory limit Redis never refuses HDEL, and HSET only as the first write of
--          a script: the HDEL before it, of a field that cannot exist, changes nothing.
-- Replica  "Not there" must come from a master: a demoted master, whose data may be
--          old, refuses each HDEL with READONLY.

-- include publish
local lock = KEYS[1]
local id, entries, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if entries ~= '0' then
  redis.call('hdel', lock, '')
  if redis.call('hexists', lock, id) == 0 then
    return -redis.call('exists', lock)
  end
  redis.call('hset', lock, id, entries)
  return 2
end
-- The hash is deleted with its last field. If others have added fields, Redisson's release deletes
-- them too; here they remain until the TTL of the hash.
if redis.call('hdel', lock, id) == 0 then
  return -redis.call('exists', lock)
end
return told(1, announce(how, channel, '0'))
