-- rw_read_enter: begin a read hold.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this stay's reading
-- KEYS[3]  timer of this entry
-- KEYS[4]  writers that wait and go first: stay id -> alive until, ms; only if
--          writers are preferred
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- ARGV[4]  stay id of the owner's write hold, under which it may read; '' if it
--          has none
-- Reply    {1, 0}     entered
--          {0, ms}    not now; look again within ms (-1: there is no telling)
--          {-1, 0}    this stay was given up: a late copy, nothing done
--          {-2, 0|1}  the owner's write hold is gone (1: others hold the lock)
-- Caller   Lock, TryLock of a ReadLock
-- Twice    A second run finds the field, and lengthens a lease at most. A copy
--          that comes after the stay has ended meets its tombstone, which is
--          left if the client knows of a copy that may be under way.
-- Memory   The timer is written first: a server at its memory limit refuses it,
--          and with it the whole acquire.

-- include rw
if redis.call('exists', KEYS[2]) == 1 then
  return {-1, 0}
end
local lease = tonumber(ARGV[3])
local mode = redis.call('hget', lock, 'mode')
if redis.call('hexists', lock, stay) == 1 then
  -- Entered before. The reply must come from a master: a demoted one refuses.
  redis.call('hdel', lock, '')
elseif ARGV[4] ~= '' then
  if redis.call('hexists', lock, ARGV[4] .. ':write') == 0 then
    redis.call('hdel', lock, '')
    return {-2, redis.call('exists', lock)}
  end
elseif mode ~= 'read' and redis.call('exists', lock) == 1 then
  -- A writer's, or a lock of another type.
  return {0, redis.call('pttl', lock)}
elseif KEYS[4] then
  local last = redis.call('zrevrange', KEYS[4], 0, 0, 'withscores')
  if last[2] then
    local time = redis.call('time')
    local ms = tonumber(last[2]) - time[1] * 1000 - math.floor(time[2] / 1000)
    if ms > 0 then
      return {0, ms}
    end
  end
end

if redis.call('pttl', KEYS[3]) < lease then
  redis.call('set', KEYS[3], 1, 'px', lease)
end
if not mode then
  redis.call('hset', lock, 'mode', 'read')
end
redis.call('hsetnx', lock, stay, 1)
lengthen(lock, lease)
return {1, 0}
