-- rw/write_adopt: continue a detached write hold under a new id.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the detached hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  secret
-- ARGV[3]  lease, ms
-- ARGV[4]  time to keep the tombstone, ms
-- Reply    as lock/adopt; and
--          {-7, 0}  the owner also has a read hold
-- Caller   Adopt
-- Twice    As lock/adopt.
-- Memory   As lock/adopt.
-- Replica  As lock/adopt.

-- include quarantine when served
-- include ttl
-- include sides
-- include adoption
-- include hash
local lock, tombstone, own = KEYS[1], KEYS[2], KEYS[3]
local id, secret, lease, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('exists', own) == 1 then
  return {-1, 0}
end
redis.call('hdel', lock, '')
local reply = foreignAt(lock)
if reply then
  return reply
end
local by, token = offered(tombstone, id, secret)
local rest = redis.call('pttl', lock)
if not by or redis.call('hexists', lock, by .. ':write') == 0 or rest < 0 then
  return {0, redis.call('exists', lock)}
elseif redis.call('hlen', lock) > 2 then
  return {-7, 0}
elseif by == id then
  lengthen(lock, lease)
  return {1, 0, token}
end
redis.call('hset', lock, id .. ':write', '1')
redis.call('hdel', lock, by .. ':write')
redis.call('pexpire', lock, lease)
take(tombstone, id, rest, keep)
return {1, 0, token}
