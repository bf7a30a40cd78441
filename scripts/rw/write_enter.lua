-- rw/write_enter: begin a write hold.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of this write hold
-- KEYS[3]  fencing clock of the lock
-- KEYS[4], KEYS[5]  waiting writers, and readers that go before them: see
--          shared/turns.lua; absent if readers are preferred
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  how long this request keeps a place among the waiting writers, ms; 0: no place
-- ARGV[5]  '1' if an earlier request may have left a place. The client knows of a place that
--          a late copy of this request leaves: see rw/write_abandon
-- Reply    {1, token}  entered
--          {0, ms, holder, others}  not now; poll again within ms (-1: not known); see
--                      shared/hash.lua
--          {-1, 0}     this hold was abandoned: a late copy, nothing done
--          {-3, ms}    see shared/quarantine.lua
-- Caller   Lock, TryLock of a WriteLock
-- Twice    A second run finds the field. It changes only the clock and the lease, which
--          grow; the client uses the token of one reply only. A copy that comes after the
--          hold has ended finds its tombstone, which the client leaves if a copy may be
--          under way.
-- Memory   The token is written first: a server at its memory limit refuses it, and with
--          it the whole acquire.

-- include quarantine when served
-- include time
-- include ttl
-- include token
-- include sides
-- include turns
-- include hash
local lock, tombstone, clock, writers, admitted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, lease, timers = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local place, had = tonumber(ARGV[4]), ARGV[5] == '1'
local writer = id .. ':write'
if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end

-- taken returns the reply if others keep the writer out, else false.
local function taken()
  if redis.call('exists', lock) == 1 then
    local left = redis.call('pttl', lock)
    if left < 0 or redis.call('hget', lock, 'mode') ~= 'read' then
      return refused(lock, left)
    end
    -- The hash may outlive its readers, if Java clients renew it or there are many.
    local ms, seen = alive(lock, timers)
    if ms > 0 or not seen then
      return refused(lock, math.max(ms, 1), function(reader, count)
        return rest(lock, timers, reader, count) > 0
      end)
    end
  end
  local ms = admitted and aliveFor(admitted) or 0
  return ms ~= 0 and {0, ms, '', 0}
end

local mine = redis.call('hexists', lock, writer) == 1
local reply = not mine and taken()
if reply then
  if writers and place > 0 and not reply.err then
    await(writers, id, place)
  end
  return reply
end

local token = drawToken(clock, micros())
if not mine then
  redis.call('hset', lock, 'mode', 'write', writer, 1)
end
lengthen(lock, lease)
if had and writers then
  redis.call('zrem', writers, id)
end
return {1, token}
