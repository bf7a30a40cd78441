-- line: the line of waiters of a fair lock. The queue and the deadlines are Redisson's and
-- follow its rules; alive and notes are ours. Nothing here walks the line: a step costs
-- the same however many wait, except for one LREM when a waiter leaves from the middle.
--
-- KEYS[1]  lock hash
-- KEYS[2]  queue: list of hold ids; the head is next
-- KEYS[3]  deadlines: zset, hold id -> epoch ms from which Redisson may remove
--          the waiter if it is the head. A waiter of Redisson adds its waiting time
--          to the deadline of the last in line, and subtracts it from all behind it
--          when it leaves. Ours together add one waiter lease, and subtract nothing.
-- KEYS[4]  alive: see life.lua. It does not have Redisson's waiters.
-- KEYS[5]  notes: see life.lua; and hold id -> how many of Redisson's waiters were in
--          line when the waiter came, if there were any
--
-- Defines  lock, queue, deadlines, alive, notes: these keys; clock, digits, now: the time
--          in µs, also as text, and in ms; YEAR, THEIR_TERM; head: the head of the line, or
--          false; headsSign(), silence(heard, term), forget(id), pop(), leave(id), torn(),
--          sweep(me, term), outlast(deadline), tell(me, term, channels, how, ttl). term is a waiter
--          lease, ms: how long a sign of life is valid. channels is the prefix of the
--          waiters' channels; the id of the waiter follows. ttl is the PTTL of the lock
-- include time
-- include publish
-- include life
local lock, queue, deadlines, alive, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local clock, digits = micros()
local now = math.floor(clock / 1000)
local head = redis.call('lindex', queue, 0)
local first = head -- the head as the script began
local itsSign -- what headsSign has read

-- How long Redisson's waiters wait by default. Each subtracts its time from the deadlines
-- of all behind it when it leaves.
local THEIR_TERM = 5 * 60 * 1000
local DAY = 24 * 60 * 60 * 1000
-- The deadline of an endless wait may be too large for a TTL or a reply.
local YEAR = 365 * DAY
-- How many dead waiters one script removes at most: from the head of the line, and from
-- elsewhere, which costs more. The next caller goes on.
local MOST_HEADS, MOST_OTHERS = 100, 4

-- silence returns how long ago a waiter gave this sign of life.
local function silence(heard, term)
  return math.max(now - (heard - term), 0)
end

-- headsSign returns the sign of life of the head, or false. Whoever changes that of the head
-- does not ask afterwards.
local function headsSign()
  if itsSign == nil then
    itsSign = redis.call('zscore', alive, head)
  end
  return itsSign
end

-- advance reads who is the head now.
local function advance()
  head, itsSign = redis.call('lindex', queue, 0), nil
end

-- forget drops what is known of a waiter.
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
  end
end

-- torn reports whether the queue and the deadlines differ: one of them was evicted or
-- removed. Until the waiters have restored it, only the queue tells who is in line.
local function torn()
  return redis.call('llen', queue) ~= redis.call('zcard', deadlines)
end

-- sweep removes dead waiters, but never me, the caller, who is alive. It reports whether
-- there is any sign of life, old or new.
local function sweep(me, term)
  local anybody, silent = listen(alive, notes, now, term)
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

-- outlast gives the line a TTL, in case no waiter ever comes back. The TTL is so far
-- beyond all deadlines that waiters of Redisson, which do not set one, do not outlive it.
-- All keys get the same, so that of the queue tells for all, unless one of them may be new.
-- With deadline none is, and no other waiter has a later deadline and set no TTL.
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

-- tell wakes the head of the line, unless that is me: if the lock is free, or if the head
-- is new and its next look, within a third of a waiter lease, could come after the end of
-- the holder's lease. It also moves the deadline of a head of ours, so that Redisson does
-- not remove it before that look. If the head is dead, because sweep had too many to
-- remove, a live waiter is woken to go on with that.
local function tell(me, term, channels, how, ttl)
  if not head or head == me then
    return
  end
  local whom, heard = head, headsSign()
  if heard and lives(heard) <= now then
    whom = redis.call('zrevrange', alive, 0, 0)[1]
  elseif heard and (redis.call('zscore', deadlines, head) or now) - now < term then
    redis.call('zadd', deadlines, now + term, head)
  end
  ttl = ttl or redis.call('pttl', lock)
  if ttl == -2 or whom ~= first and ttl >= 0 and ttl < term / 3 then
    announce(how, channels .. whom, '0')
  end
end
