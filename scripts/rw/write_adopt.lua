-- rw/write_adopt: go on with a write hold of another client, under an id of one's own.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the write hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new one
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  lease, ms; see shared/adoption.lua
-- ARGV[4]  time to keep the tombstone, ms
-- ARGV[5]  channel on which the holder listens
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    as lock/adopt; and
--          {-7, 0}  the owner reads too
-- Caller   Adopt
-- Twice    As lock/adopt.
-- Memory   As lock/adopt.
-- Replica  As lock/adopt.

-- include quarantine when served
-- include ttl
-- include sides
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
if redis.call('hexists', lock, id .. ':write') == 1 then
  rest = mark and 0 or leftFor(tombstone, id)
else
  local entries, ms = redis.call('hget', lock, old .. ':write'), redis.call('pttl', lock)
  if not entries then
    return {0, -absent(lock, old)}
  elseif ms < 0 then
    return {0, 1} -- somebody has taken its TTL: nobody can tell until when the holder believes
  elseif redis.call('hlen', lock) > 2 then
    return {-7, 0}
  end
  redis.call('hset', lock, id .. ':write', '1')
  redis.call('hdel', lock, old .. ':write')
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
