-- rw/read_enter: begin a read hold.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of this read hold
-- KEYS[3]  timer of this entry
-- KEYS[4], KEYS[5], KEYS[6]  waiting writers, waiting readers, and readers that go before
--          writers: see shared/turns.lua; absent if readers are preferred
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  id of the owner's write hold, under which it may read; '' if it has none
-- ARGV[5]  how long this request keeps a place among the waiting readers, ms; 0: no place
-- ARGV[6]  round in which the acquire was first refused; '' if it was not
-- ARGV[7]  '1' if an earlier request may have left a place. The client knows of a place that
--          a late copy of this request leaves: see rw/read_abandon
-- Reply    {1, 0}     entered
--          {0, ms, holder, others, round}  not now; poll again within ms (-1: not known);
--                     see shared/hash.lua. A waiting writer is not a holder
--          {-1, 0}    this hold was abandoned: a late copy, nothing done
--          {-2, 0|1}  the owner's write hold is gone (1: others hold the lock)
--          {-3, ms}   see shared/quarantine.lua
-- Caller   Lock, TryLock of a ReadLock
-- Twice    A second run finds the field, and at most lengthens a lease. A copy that comes
--          after the hold has ended finds its tombstone, which the client leaves if it
--          knows of a copy that may be under way.
-- Memory   The timer is written first: a server at its memory limit refuses it, and with
--          it the whole acquire.

-- include quarantine when served
-- include ttl
-- include sides
-- include turns
-- include hash
local lock, tombstone, first = KEYS[1], KEYS[2], KEYS[3]
local writers, readers, admitted = KEYS[4], KEYS[5], KEYS[6]
local id, lease, outer = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local place, since, had = tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1'
if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
local mode = redis.call('hget', lock, 'mode')

-- early returns how long waiting writers keep the reader out, ms.
local function early()
  local ms = aliveFor(writers)
  if ms == 0 or redis.call('zscore', admitted, id) or since ~= '' and tonumber(since) ~= round(admitted) then
    return 0
  end
  return ms
end

local function refuse(reply)
  if reply.err then
    return reply
  end
  if writers and place > 0 then
    await(redis.call('zscore', admitted, id) and admitted or readers, id, place)
  end
  reply[5] = writers and round(admitted) or 0
  return reply
end

if redis.call('hexists', lock, id) == 1 then
  -- The hold was entered before. The reply must come from a master: see lock/release.
  redis.call('hdel', lock, '')
elseif outer ~= '' then
  if redis.call('hexists', lock, outer .. ':write') == 0 then
    redis.call('hdel', lock, '')
    return {-2, redis.call('exists', lock)}
  end
elseif mode ~= 'read' and redis.call('exists', lock) == 1 then
  -- The lock is held by a writer, or as a lock of another type.
  return refuse(refused(lock, redis.call('pttl', lock)))
else
  local reply = mode and foreignAt(lock)
  if reply then
    return reply
  end
  local ms = writers and early() or 0
  if ms > 0 then
    return refuse({0, ms, '', 0})
  end
end

if redis.call('pttl', first) < lease then
  redis.call('set', first, 1, 'px', lease)
end
if not mode then
  redis.call('hset', lock, 'mode', 'read')
end
redis.call('hsetnx', lock, id, 1)
lengthen(lock, lease)
if had and writers then
  come(readers, admitted, id)
end
return {1, 0}
