-- lock/adopt: go on with a hold of another client, under an id of one's own.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of the hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  lease, ms; see shared/adoption.lua
-- ARGV[4]  time to keep the tombstone, ms
-- ARGV[5]  channel on which the holder listens
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    {1, ms}   the hold has the new id. The holder before may believe for ms more that it
--                    has the lock: ask again until it is 0
--          {0, n}    there is no such hold; n is 1 if others hold the lock
--          {-1, 0}   the adoption was given up: a late copy, nothing done
--          {-3, ms}  see shared/quarantine.lua
-- Caller   Adopt
-- Twice    A second run finds the new id. The lease is set once, and a copy after that at most
--          lengthens it. The old id is never in the lock again (its tombstone stops late copies
--          of its acquire), so a copy that comes after the end of the new hold finds nothing.
-- Memory   The HDEL, of a field that cannot exist, lets the HSET pass on a server at its memory
--          limit. The new field is there before the old one goes: the hash keeps its TTL.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include quarantine when served
-- include ttl
-- include publish
-- include adoption
local lock, tombstone, own = KEYS[1], KEYS[2], KEYS[3]
local id, old, lease, keep, channel, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local mark = redis.call('get', own)
if mark and mark ~= BEGUN then
  return {-1, 0}
end
redis.call('hdel', lock, '')
local rest
if redis.call('hexists', lock, id) == 1 then
  rest = mark and 0 or leftFor(tombstone, id)
else
  local entries, ms = redis.call('hget', lock, old), redis.call('pttl', lock)
  if not entries then
    return {0, redis.call('exists', lock)}
  elseif ms < 0 then
    return {0, 1} -- somebody has taken its TTL: nobody can tell until when the holder believes
  end
  redis.call('hset', lock, id, '1')
  redis.call('hdel', lock, old)
  rest = bury(tombstone, id, ms, entries, keep)
  if rest > 0 then
    announce(how, channel, '1')
  end
end
if rest == 0 and not mark then
  redis.call('pexpire', lock, lease)
  begins(own, keep)
else
  lengthen(lock, rest + lease)
end
return told({1, rest})
