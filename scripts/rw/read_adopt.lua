-- rw/read_adopt: go on with a read hold of another client, under an id of one's own.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the read hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new one
-- KEYS[4]  timer of the first entry of the hold
-- KEYS[5]  timer of the first entry of the new one
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  lease, ms; see shared/adoption.lua
-- ARGV[4]  time to keep the tombstone, ms
-- ARGV[5]  channel on which the holder listens
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- ARGV[7]  prefix of the timers' names
-- Reply    as lock/adopt; and
--          {-7, 0}  the owner writes too
-- Caller   Adopt
-- Twice    As lock/adopt.
-- Memory   As lock/adopt.
-- Replica  As lock/adopt.

-- include quarantine when served
-- include ttl
-- include sides
-- include publish
-- include adoption
local lock, tombstone, own, first, timer1 = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, old, lease, keep, channel, how, timers = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
local mark = redis.call('get', own)
if mark and mark ~= BEGUN then
  return {-1, 0}
end
redis.call('hdel', lock, '')
local rest
if redis.call('hexists', lock, id) == 1 and redis.call('pttl', timer1) > 0 then
  rest = mark and 0 or leftFor(tombstone, id)
else
  local entries, ms = redis.call('hget', lock, old), redis.call('pttl', first)
  if not entries or ms <= 0 then
    return {0, -absent(lock, old)}
  elseif redis.call('hget', lock, 'mode') ~= 'read' then
    return {-7, 0}
  end
  redis.call('hset', lock, id, '1')
  redis.call('hdel', lock, old)
  for i = tonumber(entries) or 1, 1, -1 do
    drop(timers, old, i)
  end
  rest = bury(tombstone, id, ms, entries, keep)
  redis.call('set', timer1, 1, 'px', rest + lease)
  if rest > 0 then
    announce(how, channel, '1')
  end
end
if rest == 0 and not mark then
  redis.call('pexpire', timer1, lease)
  if redis.call('hlen', lock) == 2 then -- it reads alone; otherwise the timers tell
    redis.call('pexpire', lock, lease)
  end
  begins(own, keep)
end
lengthen(timer1, rest + lease)
lengthen(lock, rest + lease)
return told({1, rest})
