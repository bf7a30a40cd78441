-- acquire: take a free lock, or raise the count of a hold that its owner has.
--
-- KEYS[1]  lock hash: stay id -> hold count
-- KEYS[2]  what tokens come from: see ARGV[4]     (first entry only)
-- KEYS[3]  tombstone of this stay                 (first entry only)
-- ARGV[1]  stay id
-- ARGV[2]  lease, ms
-- ARGV[3]  hold count wanted; 1 is a first entry, more is a re-entry
-- ARGV[4]  'clock': KEYS[2] is the fencing clock of the lock's slot;
--          'counter': Redisson's counter of this lock
--                                                 (first entry only)
-- Reply    {1, token}  held; the token is 0 on a re-entry, which keeps its own
--          {0, pttl, holder, others}  held by others for pttl ms (-1: no TTL);
--                      see shared/holders.lua
--          {-1, 0}     this stay was given up: a late copy, nothing done
--          {-2, 0|1}   re-entry into a hold that is gone (1: another has it)
-- Caller   Lock, TryLock
-- Twice    The count is absolute and a stay takes a free lock under its own
--          id only, so a second run changes nothing but the clock; it replies
--          a higher token, but no one has seen the first. The counter is
--          not raised again: while the stay holds the lock its value is the
--          stay's. A copy that comes after the stay has ended meets
--          its tombstone, which is left if the client knows of a copy that may
--          be under way. A re-entry never creates a lock.

-- include holders
local lock, stay = KEYS[1], ARGV[1]
local lease, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local mine = redis.call('hexists', lock, stay) == 1

local function lengthen()
  if redis.call('pttl', lock) < lease then
    redis.call('pexpire', lock, lease)
  end
end

if count > 1 then
  if not mine then
    redis.call('hdel', lock, '') -- a demoted master refuses: its data may be old
    return {-2, redis.call('exists', lock)}
  end
  redis.call('hset', lock, stay, ARGV[3])
  lengthen()
  return {1, 0}
end

if redis.call('exists', KEYS[3]) == 1 then
  return {-1, 0}
end
if not mine and redis.call('exists', lock) == 1 then
  return refused(lock, redis.call('pttl', lock))
end

-- The token is written first: if the server has no memory left, this refuses
-- the whole acquire before anything is changed. The number goes to SET as it
-- is: tostring() would round it.
local token
if ARGV[4] == 'counter' then
  token = tonumber(mine and redis.call('get', KEYS[2]) or redis.call('incr', KEYS[2]))
else
  local now = redis.call('time')
  local last = tonumber(redis.call('get', KEYS[2]) or 0)
  token = math.max(last + 1, now[1] * 1000000 + now[2])
  redis.call('set', KEYS[2], token)
end
if not mine then
  redis.call('hset', lock, stay, 1)
end
lengthen()
return {1, token}
