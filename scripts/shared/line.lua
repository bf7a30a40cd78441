-- line: the line of waiters of a fair lock. The queue and the deadlines are Redisson's and
-- follow its rules; alive and notes are ours. Nothing here walks the line: a step costs
-- the same however many wait, except for one LREM when a waiter leaves from the middle. The
-- keys are in linekeys.lua.
--
-- Defines  YEAR, THEIR_TERM; head: the head of the line, or false; first: that as the script
--          began; headsSign(), silence(heard, term), forget(id), pop(), leave(id), total(),
--          torn(n), without(n), sweep(me, term, ours), silent: sweep has found signs of life
--          that have expired; outlast(deadline), tell(me, term, channels, how, ttl). term is a waiter lease,
--          ms: how long a sign of life is valid. channels is the prefix of the waiters'
--          channels; the id of the waiter follows. ttl is the PTTL of the lock. Call sweep
--          before tell
-- include linekeys
-- include publish
-- include life
local two = redis.call('lrange', queue, '0', '1')
local head, behind = two[1] or false, two[2] or false -- the latter is nil if it is not known
local first = head -- the head as the script began
local itsSign -- what headsSign has read
local silent

-- How long Redisson's waiters wait by default. A waiter that leaves subtracts its own time from the deadlines of all
-- waiters behind it.
local THEIR_TERM = 5 * 60 * 1000
-- The deadline of an endless wait may be too large for a TTL or a reply.
local YEAR = 365 * DAY
-- How many dead waiters one script removes at most: from the head of the line, and from
-- elsewhere, which costs more. The next caller goes on.
local MOST_HEADS, MOST_OTHERS = 100, 4

-- silence returns how long ago a waiter gave this sign of life.
local function silence(heard, term)
  return math.max(now - (heard - term), 0)
end

-- headsSign returns the sign of life of the head, or false. The result is cached: a script must not call it again after it
-- has changed that sign.
local function headsSign()
  if itsSign == nil then
    itsSign = redis.call('zscore', alive, head)
  end
  return itsSign
end

-- advance makes the one behind the head, if any, the head.
local function advance()
  if behind == nil then
    behind = redis.call('lindex', queue, 0)
  end
  head, behind, itsSign = behind, behind and nil, nil
end

-- forget deletes the data of a waiter outside of the queue.
local function forget(id)
  redis.call('zrem', deadlines, id)
  unsign(alive, notes, id)
  redis.call('hdel', notes, id)
end

-- pop takes the head out of the line.
local function pop()
  redis.call('lpop', queue)
  forget(head)
  advance()
end

-- leave takes a waiter out of the line, wherever it is.
local function leave(id)
  redis.call('lrem', queue, 1, id)
  forget(id)
  if id == head then
    advance()
  elseif id == behind then
    behind = nil
  end
end

-- total returns how many waiters have deadlines.
local function total()
  return redis.call('zcard', deadlines)
end

-- torn reports whether the queue and the n deadlines differ: one of the two keys was evicted or removed. Until the waiters
-- have restored it, only the queue shows which waiters are in line.
local function torn(n)
  return n ~= (head and redis.call('llen', queue) or 0)
end

-- without returns how many of n waiters in line have given no sign of life: these are Redisson's.
local function without(n)
  return n > 0 and n - redis.call('zcard', alive) or 0
end

-- sweep removes dead waiters, but never me, the caller. It reports whether there is any sign of life, old or new. If the
-- numbers show that no waiter is Redisson's, no waiter is dead while no sign has expired. The sign of a waiter that
-- Redisson has removed may hide one of Redisson's waiters in these numbers: if that one is dead, it is removed when the
-- sign has expired.
local function sweep(me, term, ours)
  local anybody
  anybody, silent = listen(alive, notes, now, term)
  if ours and not silent then
    return anybody
  end
  for _ = 1, MOST_HEADS do
    if not head or head == me then
      break
    end
    local heard = headsSign()
    if heard then
      if lives(heard) > now then
        break
      end
    else
      -- Redisson's rule, for its waiters.
      local deadline = redis.call('zscore', deadlines, head)
      if not deadline then
        -- The deadlines were removed. A head without one would stay forever.
        redis.call('zadd', deadlines, now + term, head)
        break
      end
      if deadline - now > 0 then
        break
      end
    end
    pop()
  end
  if silent then
    for _, id in ipairs(silenced(alive, now, MOST_OTHERS)) do
      if id ~= me then
        leave(id)
      end
    end
  end
  return anybody
end

-- outlast gives the line a TTL, in case no waiter ever comes back. The TTL is far beyond all deadlines, because waiters of
-- Redisson do not set one. All keys get the same TTL, so the queue's TTL is the TTL of all keys, unless a key may be new.
-- If deadline is given, no key is new, and no other waiter that sets no TTL has a later deadline.
local function outlast(deadline)
  local kept = redis.call('pttl', queue)
  local last = deadline or redis.call('zrevrange', deadlines, 0, 0, 'withscores')[2] or now
  local ttl = math.min(math.ceil(math.max(last - now, 0)), YEAR) + DAY
  if deadline and kept >= ttl - DAY / 2 then
    return
  end
  for _, key in ipairs({queue, deadlines, alive, notes}) do
    redis.call('pexpire', key, math.max(ttl, kept))
  end
end

-- tell wakes the head of the line, unless the head is me: if the lock is free, or if the head is new and its next poll,
-- within a third of a waiter lease, could come after the end of the holder's lease. If the head is dead, because sweep had
-- too many waiters to remove, tell wakes a live waiter, which continues the removal.
--
-- Redisson removes a head whose deadline is over. A waiter of ours is alive while its sign of life is valid, and its
-- deadline is not earlier than that: fair/enter sets both with each poll, and adds to the deadline the time that
-- Redisson's waiters before it will subtract when they leave. Only a pardoned waiter outlives its sign. tell moves the
-- deadline of such a head, so that Redisson does not remove it before its next poll.
local function tell(me, term, channels, how, ttl)
  if not head or head == me then
    return
  end
  local whom, heard = head, silent and headsSign()
  if heard and lives(heard) <= now then
    whom = redis.call('zrevrange', alive, 0, 0)[1]
  elseif heard and tonumber(heard) <= now and (redis.call('zscore', deadlines, head) or now) - now < term then
    redis.call('zadd', deadlines, now + term, head)
  end
  ttl = ttl or redis.call('pttl', lock)
  if ttl == -2 or whom ~= first and ttl >= 0 and ttl < term / 3 then
    announce(how, channels .. whom, '0')
  end
end
