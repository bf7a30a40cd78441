-- rw_write_enter: begin a write hold.
--
-- KEYS[1]  lock hash
-- KEYS[2]  fencing clock of the lock's slot
-- KEYS[3]  tombstone of this stay's writing
-- KEYS[4]  writers that wait and go first: stay id -> alive until, ms; only if
--          writers are preferred
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- ARGV[4]  for how long this look keeps its place among the writers, ms; 0: it
--          does not wait
-- Reply    {1, token}  entered
--          {0, ms}     not now; look again within ms (-1: there is no telling)
--          {-1, 0}     this stay was given up: a late copy, nothing done
-- Caller   Lock, TryLock of a WriteLock
-- Twice    A second run finds the field, and changes nothing but the clock and
--          the lease, which grow; no one has seen the token of the first. A
--          copy that comes after the stay has ended meets its tombstone, which
--          is left if the client knows of a copy that may be under way.
-- Memory   The token is written first: a server at its memory limit refuses
--          it, and with it the whole acquire.

-- include rw
if redis.call('exists', KEYS[3]) == 1 then
  return {-1, 0}
end
local lease = tonumber(ARGV[3])
local now = redis.call('time')
local mine = redis.call('hexists', lock, writer) == 1
if not mine and redis.call('exists', lock) == 1 then
  local held, ms, dead = true, redis.call('pttl', lock), {}
  if redis.call('hget', lock, 'mode') == 'read' then
    -- The hash may outlive its readers, by as much as one that has left had
    -- asked for, beside one that died.
    ms, dead = alive()
    held = ms > 0
  end
  if held then
    for _, reader in ipairs(dead) do
      redis.call('hdel', lock, reader)
    end
    if ARGV[4] ~= '0' and KEYS[4] then
      local millis = now[1] * 1000 + math.floor(now[2] / 1000)
      redis.call('zremrangebyscore', KEYS[4], '-inf', millis)
      redis.call('zadd', KEYS[4], millis + ARGV[4], stay)
      lengthen(KEYS[4], tonumber(ARGV[4]))
    end
    return {0, ms}
  end
end

local last = tonumber(redis.call('get', KEYS[2]) or 0)
local token = math.max(last + 1, now[1] * 1000000 + now[2])
redis.call('set', KEYS[2], token)
if not mine then
  redis.call('del', lock) -- readers that are dead
  redis.call('hset', lock, 'mode', 'write', writer, 1)
end
lengthen(lock, lease)
if KEYS[4] then
  redis.call('zrem', KEYS[4], stay)
end
return {1, token}
