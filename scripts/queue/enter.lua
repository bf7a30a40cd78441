-- queue/enter: enter a lock that has a queue of its own, or get in the queue.
--
-- KEYS[1] to KEYS[6]  see shared/queue.lua
-- KEYS[7]  tombstone of this hold
-- KEYS[8]  fencing clock of the lock's slot
-- KEYS[9], KEYS[10]  what other types of locks of this name have: the hash of those
--          that Redisson has too, and the ends of the other type with a queue
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  'exclusive' or 'shared'
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  id of the exclusive hold that lets it in, or ''
-- ARGV[6]  '1': wait, that is be in the queue, and be alive there
-- ARGV[7]  how much the priority is worth, in µs of waiting
-- ARGV[8]  what the channel of a waiter begins with
-- ARGV[9]  'publish', 'spublish', 'both' or 'none'
-- Reply    {1, token}  held; the token is 0 for a shared hold
--          {0, rest, holder, others}  not now; what is in the way is there for rest ms
--                      at most, unless it is renewed. One of the holders or '', and how
--                      many more there are
--          {-1, 0}     this hold was given up: a late copy, nothing done
--          {-2, 0|1}   the hold that was to let it in is gone (1: others hold
--                      the lock)
--          {-3, ms}    see shared/quarantine.lua
--          {-4, 0}     another type of lock of this name is held
-- Caller   Lock, TryLock
-- Twice    A hold that is there remains, token and all; a waiter that is in
--          the queue has its rank. A copy that comes after the hold has ended
--          meets its tombstone, which is left if the client knows of a copy
--          that may be under way.
-- Memory   The first write of an entry or of a new place in the queue is one
--          that Redis refuses at its memory limit, so either is refused as a
--          whole. A waiter that is in the queue remains alive all the same.
--
-- The rank is the time of arrival, as drawn from the fencing clock so that no two
-- are the same, less what the priority is worth. That makes "priority plus time
-- waited" an order that does not change with time.

-- include quarantine when served
-- include token
-- include queue
local tombstone, tokens, otherHash, otherEnds = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local id, lease, mode, term = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local outer, waits, worth = ARGV[5], ARGV[6] == '1', tonumber(ARGV[7])
local channels, how = ARGV[8], ARGV[9]
local queue = mode == 'exclusive' and alone or together
local hold = mode == 'exclusive' and mode or id

-- obstacle is until when something may be in the way of the given rank, nil if
-- nothing is. Of the waiters ahead it asks the first only: if that one is still
-- there then, it is time to look again. Of equal ranks, which only priorities can
-- bring about, Redis's own order decides.
local function obstacle(rank)
  local latest
  local function note(at)
    if at and tonumber(at) >= now then
      latest = math.max(latest or 0, tonumber(at))
    end
  end
  local ahead, its, at = first(alone)
  if ahead and ahead ~= id and its <= rank then
    note(at)
  end
  if mode == 'shared' then
    note(redis.call('zscore', ends, 'exclusive'))
    return latest
  end
  note(redis.call('zrevrange', ends, 0, 0, 'withscores')[2])
  ahead, its, at = first(together)
  if ahead and its < rank then
    note(at)
  end
  return latest
end

local function refused(rest)
  local last = redis.call('zrevrange', ends, 0, 0)[1]
  if not last or not live(last) then
    return {0, rest, '', 0}
  elseif last == 'exclusive' then
    return {0, rest, redis.call('hget', holders, last) or '', 0}
  end
  return {0, rest, last, current() - 1}
end

local function enter()
  if held(mode, id) then
    prolong(hold, lease)
    return {1, mode == 'exclusive' and tonumber(redis.call('hget', holders, 'token')) or 0}
  end
  if outer ~= '' and not held('exclusive', outer) then
    redis.call('hdel', holders, '') -- a demoted master refuses: its data may be old
    return {-2, others('exclusive', outer)}
  end

  local place = redis.call('zscore', queue, id)
  local arrival = not place and nextToken(tokens, clock)
  local rank = place and tonumber(place) or arrival - worth
  local blocked = outer == '' and obstacle(rank)
  if blocked then
    if not waits then
      return refused(blocked - now)
    end
    if place then
      redis.call('zrem', alive, '') -- lets the ZADD pass at the memory limit
    else
      redis.call('set', tokens, arrival)
    end
    redis.call('zadd', queue, rank, id) -- again, if it had no sign of life
    sign(alive, notes, now, term, id)
    for _, key in ipairs({queue, alive, notes}) do
      lengthen(key, term + LONGEST_AWAY)
    end
    return refused(blocked - now)
  end

  local token = 0
  if mode == 'exclusive' then
    token = drawToken(tokens, clock)
    redis.call('hset', holders, 'exclusive', id, 'count', 1, 'token', token)
  else
    redis.call('hset', holders, id, 1)
  end
  prolong(hold, lease)
  if place then
    redis.call('zrem', queue, id)
    unsign(alive, notes, id)
    if mode == 'shared' then
      slides()
    end
  end
  return {1, token}
end

if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
-- Those of another type do not see this lock. A program that changes the type while
-- others still use the old one would have two holders, and nobody would know.
if outer == '' and not held(mode, id) and
  (redis.call('exists', otherHash) == 1 or redis.call('zcount', otherEnds, string.format('%.0f', now), '+inf') > 0) then
  return {-4, 0}
end
reap(term)
local reply = enter()
wake(channels, how)
return told(reply)
