-- queued_enter: enter a lock that has a queue of its own, or stand in the queue.
--
-- KEYS[1] to KEYS[6]  see queued
-- KEYS[7]  fencing clock of the lock's slot
-- KEYS[8]  tombstone of this stay
-- KEYS[9]  what other types of locks of this name have: the hash of those that
-- KEYS[10] Redisson has too, and the ends of the other type with a queue
-- ARGV[1]  stay id
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  lease, ms
-- ARGV[4]  stay id of the exclusive hold that lets it in, or ''
-- ARGV[5]  '1': wait, that is stand in the queue and be alive there
-- ARGV[6]  waiter lease, ms
-- ARGV[7]  how much the priority is worth, in µs of waiting
-- ARGV[8]  what the channel of a waiter begins with
-- ARGV[9]  'publish', 'spublish', 'both' or 'none'
-- Reply    {1, token}  held; the token is 0 for a shared hold
--          {0, rest, holder, others}  not now; what is in the way stays for rest ms at
--                      most, unless it is renewed. One of the holders or '', and how
--                      many more there are
--          {-1, 0}     this stay was given up: a late copy, nothing done
--          {-2, 0|1}   the hold that was to let it in is gone (1: others hold
--                      the lock)
--          {-4, 0}     another type of lock of this name is held
-- Caller   Lock, TryLock
-- Twice    A stay that has its hold keeps it, token and all; one that stands in
--          the queue keeps its rank. A copy that comes after the stay has ended
--          meets its tombstone, which is left if the client knows of a copy
--          that may be under way.
-- Memory   The first write of an entry or of a new place in the queue is one
--          that Redis refuses at its memory limit, so either is refused as a
--          whole. A waiter that is in the queue stays alive all the same.
--
-- The rank is the time of arrival, as drawn from the fencing clock so that no two
-- are the same, less what the priority is worth. That makes "priority plus time
-- waited" an order that does not change with time.

-- include announce
-- include signs
-- include queued
local stay, mode, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local under, waits, patience = ARGV[4], ARGV[5] == '1', tonumber(ARGV[6])
local clock = KEYS[7]
local queue = mode == 'exclusive' and alone or together
local hold = mode == 'exclusive' and mode or stay

local function draw()
  return math.max((tonumber(redis.call('get', clock) or 0)) + 1, micros)
end

-- obstacle is until when something may be in the way of the given rank, nil if
-- nothing is. Of the waiters ahead it asks the first only: if that one is still
-- there then, it is time to look again. Of equal ranks, which only priorities can
-- bring about, Redis's own order decides.
local function obstacle(rank)
  local latest
  local function stays(at)
    if at and tonumber(at) >= now then
      latest = math.max(latest or 0, tonumber(at))
    end
  end
  local ahead, its, at = first(alone)
  if ahead and ahead ~= stay and its <= rank then
    stays(at)
  end
  if mode == 'shared' then
    stays(redis.call('zscore', ends, 'exclusive'))
    return latest
  end
  stays(redis.call('zrevrange', ends, 0, 0, 'withscores')[2])
  ahead, its, at = first(together)
  if ahead and its < rank then
    stays(at)
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
  return {0, rest, last, redis.call('zcount', ends, string.format('%.0f', now), '+inf') - 1}
end

local function enter()
  if held(mode, stay) then
    lengthen(hold, lease)
    return {1, mode == 'exclusive' and tonumber(redis.call('hget', holders, 'token')) or 0}
  end
  if under ~= '' and not held('exclusive', under) then
    redis.call('hdel', holders, '') -- a demoted master refuses: its data may be old
    return {-2, others('exclusive', under)}
  end

  local place = redis.call('zscore', queue, stay)
  local stamp = not place and draw()
  local rank = place and tonumber(place) or stamp - tonumber(ARGV[7])
  local blocked = under == '' and obstacle(rank)
  if blocked then
    if not waits then
      return refused(blocked - now)
    end
    if place then
      redis.call('zrem', alive, '') -- lets the ZADD pass at the memory limit
    else
      redis.call('set', clock, stamp)
    end
    redis.call('zadd', queue, rank, stay) -- again, if it had no sign of life
    sign(alive, notes, now, patience, stay)
    for _, key in ipairs({queue, alive, notes}) do
      grow(key, patience + outage)
    end
    return refused(blocked - now)
  end

  local token = 0
  if mode == 'exclusive' then
    token = draw()
    redis.call('set', clock, token)
    redis.call('hset', holders, 'exclusive', stay, 'count', 1, 'token', token)
  else
    redis.call('hset', holders, stay, 1)
  end
  lengthen(hold, lease)
  if place then
    redis.call('zrem', queue, stay)
    unsign(alive, notes, stay)
    slid = mode == 'shared' and slid + 1 or slid
  end
  return {1, token}
end

if redis.call('exists', KEYS[8]) == 1 then
  return {-1, 0}
end
-- Those of another type do not see this lock. A program that changes the type while
-- others still use the old one would have two holders, and nobody would know.
if under == '' and not held(mode, stay) and
  (redis.call('exists', KEYS[9]) == 1 or redis.call('zcount', KEYS[10], string.format('%.0f', now), '+inf') > 0) then
  return {-4, 0}
end
reap(patience)
local reply = enter()
wake(ARGV[8], ARGV[9])
return reply
