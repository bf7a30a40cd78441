-- rw/read_enter: begin a read hold.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of this hold's reading
-- KEYS[3]  timer of this entry
-- KEYS[4], KEYS[5], KEYS[6]  writers that wait, readers that wait, and readers that go
--          before writers: see shared/turns.lua; unless readers are preferred
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  what the names of timers begin with
-- ARGV[4]  id of the owner's write hold, under which it may read; '' if it has none
-- ARGV[5]  for how long this look keeps its place among the readers, ms; 0: it
--          has none
-- ARGV[6]  round in which it was refused first; '' if it was not
-- ARGV[7]  '1' if an earlier look may have had a place. A copy of this one that had
--          is known to the client: see rw/read_abandon
-- Reply    {1, 0}     entered
--          {0, ms, holder, others, round}  not now; look again within ms (-1: there is
--                     no telling); see shared/hash.lua. A writer that waits is no
--                     holder
--          {-1, 0}    this hold was given up: a late copy, nothing done
--          {-2, 0|1}  the owner's write hold is gone (1: others hold the lock)
--          {-3, ms}   see shared/quarantine.lua
-- Caller   Lock, TryLock of a ReadLock
-- Twice    A second run finds the field, and lengthens a lease at most. A copy
--          that comes after the hold has ended meets its tombstone, which is
--          left if the client knows of a copy that may be under way.
-- Memory   The timer is written first: a server at its memory limit refuses it,
--          and with it the whole acquire.

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

-- early is for how long writers that wait keep it out, ms.
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
  -- Entered before. The reply must come from a master: a demoted one refuses.
  redis.call('hdel', lock, '')
elseif outer ~= '' then
  if redis.call('hexists', lock, outer .. ':write') == 0 then
    redis.call('hdel', lock, '')
    return {-2, redis.call('exists', lock)}
  end
elseif mode ~= 'read' and redis.call('exists', lock) == 1 then
  -- A writer's, or a lock of another type.
  return refuse(refused(lock, redis.call('pttl', lock)))
elseif writers then
  local ms = early()
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
