-- queue/adopt: go on with a hold of another client, under an id of one's own.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- KEYS[3]  tombstone of the hold: see shared/adoption.lua
-- KEYS[4]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  lease, ms; see shared/adoption.lua
-- ARGV[4]  time to keep the tombstone, ms
-- ARGV[5]  channel on which the holder listens
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- ARGV[7]  'exclusive' or 'shared'
-- Reply    as lock/adopt; and
--          {-7, 0}  the owner holds the other side too
-- Caller   Adopt
-- Twice    As lock/adopt.
-- Memory   As lock/adopt.
-- Replica  As lock/adopt.

-- include quarantine when served
-- include queue
-- include adoption
local tombstone, own = KEYS[3], KEYS[4]
local id, old, lease, keep, channel, how, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
local exclusive = mode == 'exclusive'
local mark = redis.call('get', own)
if mark and mark ~= BEGUN then
  return {-1, 0}
end
redis.call('hdel', holders, '')
local rest
if held(mode, id) then
  rest = mark and 0 or leftFor(tombstone, id)
elseif not held(mode, old) then
  return {0, others(mode, old)}
elseif exclusive and current() > 1 or not exclusive and live('exclusive') then
  return {-7, 0}
else
  local at, entries = redis.call('zscore', ends, exclusive and mode or old), nil
  if exclusive then
    entries = redis.call('hget', holders, 'count')
    redis.call('hset', holders, 'exclusive', id, 'count', '1')
  else
    entries = redis.call('hget', holders, old)
    redis.call('hset', holders, id, '1')
    redis.call('zadd', ends, at, id)
    redis.call('zrem', ends, old)
    redis.call('hdel', holders, old)
  end
  rest = bury(tombstone, id, at - now + 1, entries, keep) -- it ends when its last ms is over
  if rest > 0 then
    announce(how, channel, '1')
  end
end
if rest == 0 and not mark then
  redis.call('zadd', ends, whole(now + lease), exclusive and mode or id)
  begins(own, keep)
end
prolong(exclusive and mode or id, rest + lease)
return told({1, rest})
