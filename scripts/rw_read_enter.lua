-- rw_read_enter: begin a read hold.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this stay's reading
-- KEYS[3]  timer of this entry
-- KEYS[4] to KEYS[6]  see rw_turns; unless readers are preferred
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  lease, ms
-- ARGV[4]  stay id of the owner's write hold, under which it may read; '' if it
--          has none
-- ARGV[5]  for how long this look keeps its place among the readers, ms; 0: it
--          has none
-- ARGV[6]  round in which it was refused first; '' if it was not
-- ARGV[7]  '1' if an earlier look may have had a place. A copy of this one that had
--          is known to the client: see rw_read_abandon
-- Reply    {1, 0}     entered
--          {0, ms, holder, others, round}  not now; look again within ms (-1: there is
--                     no telling); see shared/holders.lua. A writer that waits is no
--                     holder
--          {-1, 0}    this stay was given up: a late copy, nothing done
--          {-2, 0|1}  the owner's write hold is gone (1: others hold the lock)
-- Caller   Lock, TryLock of a ReadLock
-- Twice    A second run finds the field, and lengthens a lease at most. A copy
--          that comes after the stay has ended meets its tombstone, which is
--          left if the client knows of a copy that may be under way.
-- Memory   The timer is written first: a server at its memory limit refuses it,
--          and with it the whole acquire.

-- include rw
-- include rw_turns
-- include holders
if redis.call('exists', KEYS[2]) == 1 then
  return {-1, 0}
end
local lease, place = tonumber(ARGV[3]), tonumber(ARGV[5])
local turns = KEYS[4]
local mode = redis.call('hget', lock, 'mode')

-- early is for how long writers that wait keep it out, ms.
local function early()
  local ms = stays(writers)
  if ms == 0 or redis.call('zscore', admitted, stay) or ARGV[6] ~= '' and tonumber(ARGV[6]) ~= round() then
    return 0
  end
  return ms
end

local function refuse(reply)
  if reply.err then
    return reply
  end
  if turns and place > 0 then
    await(redis.call('zscore', admitted, stay) and admitted or readers, place)
  end
  reply[5] = turns and round() or 0
  return reply
end

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
  return refuse(refused(lock, redis.call('pttl', lock)))
elseif turns then
  local ms = early()
  if ms > 0 then
    return refuse({0, ms, '', 0})
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
if ARGV[7] == '1' then
  come()
end
return {1, 0}
