-- lock/adopt: continue a detached hold under a new id.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of the detached hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  secret
-- ARGV[3]  lease, ms: the rest of the previous lease does not count
-- ARGV[4]  time to keep the tombstone, ms
-- Reply    {1, 0, token}  the hold has the new id
--          {0, n}   no hold is offered, or it has ended; n is 1 if others hold the lock
--          {-1, 0}  the adoption was given up: a late copy, nothing done
--          {-3, ms} see shared/quarantine.lua
-- Caller   Adopt
-- Twice    A second run finds the new id, and only lengthens the lease. After the end of that hold it
--          finds nothing: the offer is taken.
-- Memory   The HDEL, of a field that cannot exist, lets the HSET pass on a server at its memory
--          limit. The new field is there before the old one goes: the hash keeps its TTL.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include quarantine when served
-- include ttl
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
if not by or redis.call('hexists', lock, by) == 0 or rest < 0 then -- what somebody has taken the TTL of is not ours
  return {0, redis.call('exists', lock)}
elseif by == id then
  lengthen(lock, lease)
  return {1, 0, token}
end
redis.call('hset', lock, id, '1')
redis.call('hdel', lock, by)
redis.call('pexpire', lock, lease)
take(tombstone, id, rest, keep)
return {1, 0, token}
