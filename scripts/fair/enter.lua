-- fair/enter: take a fair lock if it is free and no waiter is before the caller; otherwise
-- join the line, or keep the place there.
--
-- KEYS[1..5]  see shared/linekeys.lua
-- KEYS[6]  tombstone of this hold
-- KEYS[7]  fencing clock of the lock
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  1: wait in line; 0: only check
-- ARGV[5]  prefix of the waiters' channels
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    {1, token}  held
--          {0, rest, holder, others}  not now; see shared/hash.lua. Of a held lock, rest
--                      is the PTTL (-1: no TTL, or others come first); of a free one,
--                      the ms until the head of the line may be removed
--          {-1, 0}     this hold was abandoned: a late copy, nothing done
--          {-3, ms}    see shared/quarantine.lua
-- Caller   Lock, TryLock
-- Twice    A hold has one place in the line, and takes the lock under its own id only: a
--          second run finds what the first has done. A copy that comes after the hold has
--          ended finds its tombstone, which the client leaves if it knows of a copy that
--          may be under way.
-- Memory   At its limit Redis refuses the ZADD or SET with which a newcomer begins, and so
--          the whole script, unless dead waiters were removed before. A waiter that is in
--          line, or is the holder already, begins with an HDEL, and is never refused.

-- include quarantine when served
-- include token
-- include linekeys
-- include signs
-- include fields
local tombstone, tokens = KEYS[6], KEYS[7]
local id, lease, term, wait = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local channels, how = ARGV[5], ARGV[6]

if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
local holders = redis.call('hrandfield', lock, '2', 'withvalues') -- all of a plain lock
local reply, deadline, new

-- The usual case under contention: another owner holds a plain lock, and waiters are in line. If their
-- number shows that none is Redisson's, and no sign of life has expired, then no waiter has to be removed,
-- restored or woken, and the script need not read who they are.
if wait and #holders == 2 and holders[1] ~= id and isHold(holders[1]) and holder(holders[1], holders[2]) then
  local n = redis.call('llen', queue)
  if n > 0 and redis.call('zcard', deadlines) == n and redis.call('zcard', alive) == n and
    not expired(alive, nowText) then
    deadline = now + math.max(redis.call('pttl', lock), 0) + term
    -- A waiter that is in line has a deadline, and continues below. At the memory limit Redis refuses
    -- this ZADD as the first write of a script, but not the writes below.
    if redis.pcall('zadd', deadlines, 'nx', string.format('%.0f', deadline), id) == 1 then
      redis.call('rpush', queue, id)
      signs = n
      reply = {0, -1, holders[1], 0}
      new = sign(alive, notes, now, term, id)
      if not new and redis.call('pttl', queue) >= deadline - now + DAY / 2 then
        return reply
      end
    end
  end
end

-- include ttl
-- include line
-- include hash
if reply then
  outlast(not new and deadline)
  return reply
end
if #holders > 2 then
  holders = some(lock)
end
if has(lock, holders, id) then
  redis.call('hdel', lock, '') -- lets the SET of the token pass at the memory limit
  local token = drawToken(tokens, clock)
  lengthen(lock, lease)
  return {1, token}
end

local free = #holders == 0
local ttl = free and -2 or redis.call('pttl', lock)
local others = not free and refused(lock, ttl, nil, holders)
if others and others.err then
  return others -- no place in the line of what is no lock
end

local queued, apart
deadline = nil
local theirs -- how many of Redisson's waiters are in line
if wait then
  local n = total()
  apart, theirs = torn(n), without(n)
  -- The deadlines show whether the caller is in line, without a walk along the queue.
  deadline = n > 0 and redis.call('zscore', deadlines, id)
  queued = deadline
  if apart then
    queued = redis.call('lpos', queue, id)
  end
end
if queued then
  redis.call('hdel', lock, '')
end
local ours = wait and theirs == 0 and not apart -- all in line are ours
local anybody = sweep(id, term, ours)

if free and (not head or head == id) then
  local token = drawToken(tokens, clock, digits)
  if head then
    pop()
  elseif wait and (apart or anybody) then
    redis.call('del', deadlines) -- of an empty line
    forget(id)
  end
  redis.call('hset', lock, id, 1)
  redis.call('pexpire', lock, lease)
  tell(id, term, channels, how, lease)
  return told({1, token})
end

if wait then
  if not ours or silent then
    theirs = without(total()) -- sweep may have removed some
  end
  local settled = queued -- all keys of the line were there
  if queued then
    -- A live waiter must never reach its deadline, by the time that passes or by subtractions.
    -- A waiter of Redisson that leaves subtracts what it added when it came, which may be more
    -- than is left.
    local heard = redis.call('zscore', alive, id)
    local before = theirs > 0 and math.min(redis.call('hget', notes, id) or 0, theirs) or 0
    deadline = (deadline or now) + (heard and silence(heard, term) or 0)
    deadline = math.max(deadline, now + term + before * THEIR_TERM)
  else
    deadline = now + math.max(ttl, 0) + term
    if theirs > 0 then
      -- Redisson adds its time to the deadline of the last in line. That is the latest
      -- deadline, unless the last waiter is dead or has waited for very long.
      local latest = redis.call('zrevrange', deadlines, 0, 0, 'withscores')
      local counted = redis.call('zscore', alive, latest[1]) and term or 0
      deadline = math.max(deadline, latest[2] - counted + term)
      redis.call('hset', notes, id, theirs)
    end
  end
  redis.call('zadd', deadlines, string.format('%.0f', deadline), id)
  if not queued then
    settled = redis.call('rpush', queue, id) > 1
    head = head or id
  end
  new = sign(alive, notes, now, term, id)
  outlast(settled and theirs == 0 and not new and not apart and deadline)
end
tell(id, term, channels, how, ttl)

if not free then
  others[2] = wait and head ~= id and -1 or ttl
  return told(others)
end
local heard = headsSign()
local ends = heard and lives(heard) or redis.call('zscore', deadlines, head)
return told({0, math.min(math.max(math.ceil(ends - now), 1), YEAR), '', 0})
