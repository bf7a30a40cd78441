-- fair_enter: take a fair lock if it is free and nobody stands before the
-- caller; otherwise stand in line, or keep the place there.
--
-- KEYS[1..5], ARGV[1..3]  see shared/fair.lua
-- KEYS[6]  fencing clock of the lock's slot
-- KEYS[7]  tombstone of this stay
-- ARGV[4]  stay id
-- ARGV[5]  lease, ms
-- ARGV[6]  1: wait in line; 0: only look
-- Reply    {1, token}  held
--          {0, rest, holder, others}  not now; see shared/holders.lua. rest
--                      is the PTTL of a held lock (-1: no TTL, or others come
--                      first); of a free one, the ms until the head of the line may
--                      be removed
--          {-1, 0}     this stay was given up: a late copy, nothing done
-- Caller   Lock, TryLock
-- Twice    A stay has one place in the line, and takes the lock under its own id
--          only: a second run finds what the first has done. A copy that comes
--          after the stay has ended meets its tombstone, which is left if the
--          client knows of a copy that may be under way.
-- Memory   At its limit Redis refuses the ZADD or SET that a newcomer begins with,
--          and so the whole; if the dead were removed before, the whole passes.
--          Who stands in line begins with an HDEL, and is never refused.

-- include announce
-- include signs
-- include fair
-- include holders
local clock = KEYS[6]
local stay, lease, wait = ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'

if redis.call('exists', KEYS[7]) == 1 then
  return {-1, 0}
end

local function token()
  local last = tonumber(redis.call('get', clock) or 0)
  local next = math.max(last + 1, time[1] * 1000000 + time[2])
  redis.call('set', clock, next)
  return next
end

if redis.call('hexists', lock, stay) == 1 then
  local mine = token()
  if redis.call('pttl', lock) < lease then
    redis.call('pexpire', lock, lease)
  end
  return {1, mine}
end

-- The deadlines tell whether it stands in line, which takes no walk.
local queued
local apart = wait and torn()
if wait then
  if apart then
    queued = redis.call('lpos', queue, stay)
  else
    queued = redis.call('zscore', deadlines, stay)
  end
end
if queued then
  redis.call('hdel', lock, '')
end
sweep(stay)

local free = redis.call('exists', lock) == 0
local head = redis.call('lindex', queue, 0)
if free and (not head or head == stay) then
  local mine = token()
  if head then
    redis.call('lpop', queue)
    forget(stay)
  elseif wait and (apart or anybody) then
    redis.call('del', deadlines) -- of an empty line
    forget(stay)
  end
  redis.call('hset', lock, stay, 1)
  redis.call('pexpire', lock, lease)
  tell(stay)
  return {1, mine}
end

if wait then
  local theirs = redis.call('zcard', deadlines) - redis.call('zcard', alive)
  if queued then
    -- Neither the time that passes while it lives, nor what those before it take
    -- when they leave, brings a waiter to its deadline. Redisson's take what they
    -- had added long ago, when they came: that may be more than is left of it.
    local deadline = redis.call('zscore', deadlines, stay) or now
    local heard = redis.call('zscore', alive, stay)
    local before = theirs > 0 and math.min(redis.call('hget', notes, stay) or 0, theirs) or 0
    redis.call('zadd', deadlines, math.max(deadline + (heard and silence(heard) or 0), now + term + before * theirTerm), stay)
  else
    local deadline = now + math.max(redis.call('pttl', lock), 0) + term
    if theirs > 0 then
      -- Redisson adds its time to the deadline of the last in line. That is the
      -- latest one, unless the last is dead or has waited for very long.
      local latest = redis.call('zrevrange', deadlines, 0, 0, 'withscores')
      local counted = redis.call('zscore', alive, latest[1]) and term or 0
      deadline = math.max(deadline, latest[2] - counted + term)
      redis.call('hset', notes, stay, theirs)
    end
    redis.call('zadd', deadlines, deadline, stay)
    redis.call('rpush', queue, stay)
  end
  sign(alive, notes, now, term, stay)
  outlast()
end
tell(stay)

head = redis.call('lindex', queue, 0)
if not free then
  return refused(lock, wait and head ~= stay and -1 or redis.call('pttl', lock))
end
local heard = redis.call('zscore', alive, head)
local stands = heard and lives(heard) or redis.call('zscore', deadlines, head)
return {0, math.min(math.max(math.ceil(stands - now), 1), year), '', 0}
