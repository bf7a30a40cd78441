-- rw/read_adopt: continue a detached read hold under a new id.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the detached hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new id
-- KEYS[4]  timer of the first entry of the detached hold
-- KEYS[5]  timer of the first entry of the new one
-- ARGV[1]  new id
-- ARGV[2]  secret
-- ARGV[3]  lease, ms
-- ARGV[4]  time to keep the tombstone, ms
-- ARGV[5]  prefix of the timers' names
-- Reply    as lock/adopt; and
--          {-7, 0}  the owner also has a write hold
-- Caller   Adopt
-- Twice    As lock/adopt.
-- Memory   As lock/adopt.
-- Replica  As lock/adopt.

-- include quarantine when served
-- include ttl
-- include sides
-- include adoption
-- include hash
local lock, tombstone, own, timer1 = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local id, secret, lease, keep, timers = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if redis.call('exists', own) == 1 then
  return {-1, 0}
end
redis.call('hdel', lock, '')
local reply = foreignAt(lock)
if reply then
  return reply
end
local by, token = offered(tombstone, id, secret)
local entries = by and redis.call('hget', lock, by)
-- KEYS[4], unless an adoption was given up: then the hold has the id of that adoption.
local rest = entries and left(lock, timer(timers, by, 1)) or 0
if rest <= 0 then
  return {0, -absent(lock, by or '')}
elseif redis.call('hget', lock, 'mode') ~= 'read' then
  return {-7, 0}
elseif by ~= id then
  redis.call('hset', lock, id, '1')
  redis.call('hdel', lock, by)
  for i = tonumber(entries), 1, -1 do
    drop(timers, by, i)
  end
  redis.call('set', timer1, 1, 'px', lease)
  if redis.call('hlen', lock) == 2 then -- it reads alone; otherwise the timers tell
    redis.call('pexpire', lock, lease)
  end
  take(tombstone, id, rest, keep)
end
lengthen(timer1, lease)
lengthen(lock, lease)
return {1, 0, token}
