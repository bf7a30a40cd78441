-- lock/enter_all: take several free locks, or none of them: a hundred at most, of one server or slot.
--
-- KEYS[1]  fencing clock
-- KEYS[2], KEYS[3], ...  for each lock its hash and the tombstone of the hold
-- ARGV[1]  hold id, the same for all of them
-- ARGV[2]  lease, ms
-- Reply    {1, token}  all held, with one token
--          {0, pttl, holder, others}  one is held by others for pttl ms (-1: no
--                      TTL); see shared/hash.lua
--          {-1, 0}     the hold of one of them has ended: a late copy
--          {-3, ms}    see shared/quarantine.lua
-- Caller   MultiLock
-- Twice    As lock/enter for each lock. A copy that comes after some of the locks were
--          released does nothing: it finds their tombstones, or finds that the hold has
--          the other locks, which shows that an earlier copy ran.
-- Memory   The clock is written first: at its memory limit the server refuses it, and
--          with it everything.

-- include quarantine when served
-- include time
-- include ttl
-- include token
-- include hash
local clock = KEYS[1]
local id, lease = ARGV[1], tonumber(ARGV[2])
if redis.call('exists', unpack(KEYS, 2)) == 0 then
  -- The usual case ends here, with as few commands as possible.
  local token = drawToken(clock, micros())
  for i = 2, #KEYS, 2 do
    redis.call('hset', KEYS[i], id, 1)
    redis.call('pexpire', KEYS[i], lease)
  end
  return {1, token}
end

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
-- The clock is written first: see Memory.
local token = drawToken(clock, micros())
for i = 2, #KEYS, 2 do
  local lock = KEYS[i]
  if mine == 0 then
    redis.call('hset', lock, id, 1)
  end
  lengthen(lock, lease)
end
return {1, token}
