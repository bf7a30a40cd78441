-- rw_write_enter: begin a write hold.
--
-- KEYS[1]  lock hash
-- KEYS[2]  fencing clock of the lock's slot
-- KEYS[3]  tombstone of this stay's writing
-- KEYS[4], KEYS[5]  writers that wait, and readers that go before them: see
--          rw_turns; unless readers are preferred
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- ARGV[4]  for how long this look keeps its place among the writers, ms; 0: it
--          has none
-- ARGV[5]  '1' if an earlier look may have had a place. A copy of this one that had
--          is known to the client: see rw_write_abandon
-- Reply    {1, token}  entered
--          {0, ms, holder, others}  not now; look again within ms (-1: there is no
--                       telling); see shared/holders.lua
--          {-1, 0}     this stay was given up: a late copy, nothing done
-- Caller   Lock, TryLock of a WriteLock
-- Twice    A second run finds the field, and changes nothing but the clock and
--          the lease, which grow; no one has seen the token of the first. A
--          copy that comes after the stay has ended meets its tombstone, which
--          is left if the client knows of a copy that may be under way.
-- Memory   The token is written first: a server at its memory limit refuses
--          it, and with it the whole acquire.

-- include rw
-- include rw_turns
-- include holders
if redis.call('exists', KEYS[3]) == 1 then
  return {-1, 0}
end
local lease, place = tonumber(ARGV[3]), tonumber(ARGV[4])
local turns = KEYS[4]

-- taken is the reply if others keep it out.
local function taken()
  if redis.call('exists', lock) == 1 then
    if redis.call('hget', lock, 'mode') ~= 'read' then
      return refused(lock, redis.call('pttl', lock))
    end
    -- The hash may outlive its readers, where Java cares for it or they are many.
    local ms, seen = alive()
    if ms > 0 or not seen then
      return refused(lock, math.max(ms, 1), function(reader, count) return rest(reader, count) > 0 end)
    end
    local reply = foreign(redis.call('hgetall', lock)) -- it is about to be deleted
    if reply then
      return reply
    end
  end
  local ms = turns and stays(admitted) or 0
  return ms ~= 0 and {0, ms, '', 0}
end

local mine = redis.call('hexists', lock, writer) == 1
local reply = not mine and taken()
if reply then
  if place > 0 and not reply.err then
    await(writers, place)
  end
  return reply
end

local now = redis.call('time')
local last = tonumber(redis.call('get', KEYS[2]) or 0)
local token = math.max(last + 1, now[1] * 1000000 + now[2])
redis.call('set', KEYS[2], token)
if not mine then
  redis.call('unlink', lock) -- readers that are dead
  redis.call('hset', lock, 'mode', 'write', writer, 1)
end
lengthen(lock, lease)
if ARGV[5] == '1' then
  redis.call('zrem', writers, stay)
end
return {1, token}
