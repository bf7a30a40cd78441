-- lock/enter_all: take several free locks of one slot, or none of them.
--
-- KEYS[1]  fencing clock of the slot
-- KEYS[2], KEYS[3] ...  of each lock the hash and the tombstone of the hold
-- ARGV[1]  hold id, the same at all of them
-- ARGV[2]  lease, ms
-- Reply    {1, token}  all held, with one token
--          {0, pttl, holder, others}  one is held by others for pttl ms (-1: no
--                      TTL); see shared/hash.lua
--          {-1, 0}     the hold has ended at one of them: a late copy
--          {-3, ms}    see shared/quarantine.lua
-- Caller   MultiLock
-- Twice    As lock/enter, of which this is many at once. A copy that comes when the
--          hold has left some of the locks does nothing: either those have its
--          tombstone, or others of them are still its own, which is not so
--          before the first run.

-- include quarantine when served
-- include time
-- include ttl
-- include token
-- include hash
local clock = KEYS[1]
local id, lease = ARGV[1], tonumber(ARGV[2])
local mine = 0
for i = 2, #KEYS, 2 do
  local lock, tombstone = KEYS[i], KEYS[i + 1]
  if redis.call('exists', tombstone) == 1 then
    return {-1, 0}
  end
  mine = mine + redis.call('hexists', lock, id)
end
if mine > 0 and mine < (#KEYS - 1) / 2 then
  return {-1, 0}
end
for i = 2, #KEYS, 2 do
  local lock = KEYS[i]
  if mine == 0 and redis.call('exists', lock) == 1 then
    return refused(lock, redis.call('pttl', lock))
  end
end
-- The clock is written first: if the server has no memory left, this refuses
-- everything before anything is changed.
local token = drawToken(clock, micros())
for i = 2, #KEYS, 2 do
  local lock = KEYS[i]
  if mine == 0 then
    redis.call('hset', lock, id, 1)
  end
  lengthen(lock, lease)
end
return {1, token}
