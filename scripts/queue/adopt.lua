-- queue/adopt: continue a detached hold under a new id.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- KEYS[3]  tombstone of the detached hold: see shared/adoption.lua
-- KEYS[4]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  secret
-- ARGV[3]  lease, ms
-- ARGV[4]  time to keep the tombstone, ms
-- ARGV[5]  'exclusive' or 'shared'
-- Reply    as lock/adopt; and
--          {-7, 0}  the owner holds the other side too
-- Caller   Adopt
-- Twice    As lock/adopt.
-- Memory   As lock/adopt.
-- Replica  As lock/adopt.

-- include quarantine when served
-- include queue
-- include adoption
local tombstone, own = KEYS[3], KEYS[4]
local id, secret, lease, keep, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local exclusive = mode == 'exclusive'
if redis.call('exists', own) == 1 then
  return {-1, 0}
end
redis.call('hdel', holders, '')
local by, token = offered(tombstone, id, secret)
if not by or not held(mode, by) then
  return {0, others(mode, by or '')}
elseif exclusive and current() > 1 or not exclusive and live('exclusive') then
  return {-7, 0}
elseif by == id then
  prolong(exclusive and mode or id, lease)
  return {1, 0, token}
end
local rest = redis.call('zscore', ends, exclusive and mode or by) - now + 1 -- it ends when its last ms is over
if exclusive then
  redis.call('hset', holders, 'exclusive', id, 'count', '1')
else
  redis.call('hset', holders, id, '1')
  redis.call('zrem', ends, by)
  redis.call('hdel', holders, by)
end
redis.call('zadd', ends, whole(now + lease), exclusive and mode or id)
prolong(exclusive and mode or id, lease)
take(tombstone, id, rest, keep)
return {1, 0, token}
