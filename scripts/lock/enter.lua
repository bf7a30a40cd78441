-- lock/enter: take a free lock.
--
-- KEYS[1]  lock hash: hold id -> its entries
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  what tokens come from: see ARGV[3]
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  'clock': KEYS[3] is the fencing clock of the lock's slot;
--          'counter': Redisson's counter of this lock
-- Reply    {1, token}  held
--          {0, pttl, holder, others}  held by others for pttl ms (-1: no TTL);
--                      see shared/hash.lua
--          {-1, 0}     this hold was given up: a late copy, nothing done
--          {-3, ms}    see shared/quarantine.lua
-- Caller   Lock, TryLock
-- Twice    A hold takes a free lock under its own id only, so a second run changes
--          nothing but the clock; it replies a higher token, but no one has seen the
--          first. The counter is not raised again. A copy that comes after the hold has
--          ended meets its tombstone, which is left if the client knows of a copy that
--          may be under way.

-- include quarantine when served
-- include time
-- include ttl
-- include token
-- include hash
local lock, tombstone, tokens = KEYS[1], KEYS[2], KEYS[3]
local id, lease, source = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local mine = redis.call('hexists', lock, id) == 1
if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
if not mine and redis.call('exists', lock) == 1 then
  return refused(lock, redis.call('pttl', lock))
end
-- The token is written first: if the server has no memory left, this refuses
-- the whole acquire before anything is changed.
local token
if source == 'counter' then
  -- Not raised again for a hold that is there already: while it lasts the value of
  -- the counter is its token.
  token = tonumber(mine and redis.call('get', tokens) or redis.call('incr', tokens))
else
  token = drawToken(tokens, micros())
end
if not mine then
  redis.call('hset', lock, id, 1)
end
lengthen(lock, lease)
return {1, token}
