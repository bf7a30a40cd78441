-- acquire_all: take several free locks of one slot, or none of them.
--
-- KEYS[1]  fencing clock of the slot
-- KEYS[2], KEYS[3] ...  of each lock the hash and the tombstone of the stay
-- ARGV[1]  stay id, the same at all of them
-- ARGV[2]  lease, ms
-- Reply    {1, token}  all held, with one token
--          {0, pttl, holder, others}  one is held by others for pttl ms (-1: no
--                      TTL); see shared/holders.lua
--          {-1, 0}     the stay has ended at one of them: a late copy
-- Caller   MultiLock
-- Twice    As acquire, of which this is many at once. A copy that comes when the
--          stay has left some of the locks does nothing: either those have its
--          tombstone, or others of them are still its own, which is not so
--          before the first run.

-- include holders
local stay, lease = ARGV[1], tonumber(ARGV[2])
local mine = 0
for i = 2, #KEYS, 2 do
  if redis.call('exists', KEYS[i + 1]) == 1 then
    return {-1, 0}
  end
  mine = mine + redis.call('hexists', KEYS[i], stay)
end
if mine > 0 and mine < (#KEYS - 1) / 2 then
  return {-1, 0}
end
for i = 2, #KEYS, 2 do
  if mine == 0 and redis.call('exists', KEYS[i]) == 1 then
    return refused(KEYS[i], redis.call('pttl', KEYS[i]))
  end
end

-- The clock is written first: if the server has no memory left, this refuses
-- everything before anything is changed.
local now = redis.call('time')
local last = tonumber(redis.call('get', KEYS[1]) or 0)
local token = math.max(last + 1, now[1] * 1000000 + now[2])
redis.call('set', KEYS[1], token)
for i = 2, #KEYS, 2 do
  if mine == 0 then
    redis.call('hset', KEYS[i], stay, 1)
  end
  if redis.call('pttl', KEYS[i]) < lease then
    redis.call('pexpire', KEYS[i], lease)
  end
end
return {1, token}
