-- queue/enter: enter a FairReadWriteLock or PriorityLock, lead an Election, or join the queue.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- KEYS[7]  tombstone of this hold
-- KEYS[8]  fencing clock of the lock
-- KEYS[9]  lock hash of the types that Redisson has too; absent for an election
-- KEYS[10]  ends of the other type with a queue; absent for an election
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  'exclusive' or 'shared'
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  id of the owner's exclusive hold, under which it may enter, or ''
-- ARGV[6]  '1': wait, that is join the queue and give a sign of life
-- ARGV[7]  worth of the priority, in µs of waiting
-- ARGV[8]  prefix of the channels of clients with waiters
-- ARGV[9]  'publish', 'spublish', 'both' or 'none'
-- ARGV[10]  channel of observers of an election; absent for a lock
-- ARGV[11]  value that the leader proclaims; absent for a lock
-- Reply    {1, token}  held; the token is 0 for a shared hold
--          {0, rest, holder, others}  not now: poll again within rest ms. One of the
--                      holders or '', and how many more there are
--          {-1, 0}     this hold was abandoned: a late copy, nothing done
--          {-2, 0|1}   the owner's exclusive hold is gone (1: others hold the lock)
--          {-3, ms}    see shared/quarantine.lua
--          {-4, 0}     another type of lock of this name is held
-- Caller   Lock, TryLock, Campaign
-- Twice    An existing hold keeps its token and its value, and a waiter in the queue keeps its rank. A
--          copy that comes after the hold has ended finds its tombstone, which the client
--          leaves if it knows of a copy that may be under way.
-- Memory   At its memory limit Redis refuses the first write of a grant and of a new place
--          in the queue, and so the whole script. A waiter in the queue stays alive all
--          the same, and one that is the holder already finds its hold.
--
-- The rank is the time of arrival, drawn from the fencing clock so that no two are equal,
-- less the worth of the priority. So the order by "priority plus time waited" does not
-- change with time.

-- include quarantine when served
-- include token
-- include queuekeys
-- include signs
local tombstone, tokens, otherHash, otherEnds = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local id, lease, mode, term = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local outer, waits, worth = ARGV[5], ARGV[6] == '1', tonumber(ARGV[7])
local channels, how, news, value = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local queue = mode == 'exclusive' and alone or together

-- Most often there is none of these, and one command shows that.
local marked = redis.call('exists', tombstone, otherHash or tombstone, otherEnds or tombstone) > 0
if marked and redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end

-- joined returns the reply to a waiter while there is one hold, which is exclusive, belongs to another
-- owner and has not ended; soonest is its entry of ends. This is the usual case under contention: if no
-- sign of life has expired, no waiter has to be removed or woken, and the other waiters do not matter
-- yet. In any other case joined changes nothing and returns nil. It also returns whether the keys need
-- a TTL, and whether alive or the notes may be new: see outlast.
local function joined(soonest)
  local leader = redis.call('hget', holders, 'exclusive')
  if not leader or leader == id or expired(alive, nowText) then
    return nil
  end
  signs = redis.call('zcard', alive)
  -- At the memory limit Redis refuses this as the first write of a script, but not those below.
  local came = redis.pcall('zadd', alive, whole(now + term), id)
  if type(came) ~= 'number' then
    return nil
  end
  -- A waiter without a sign of life has no place, unless an eviction has removed the sign.
  if came == 1 or not redis.call('zscore', queue, id) then
    redis.call('zadd', queue, 'nx', whole(drawToken(tokens, clock, digits) - worth), id)
  end
  local new = noted(notes, term) or signs == 0
  return {0, soonest[2] - now, leader, 0}, new or not outlasts(redis.call('pttl', queue), term), new
end

local soonest = redis.call('zrange', ends, '0', '1', 'withscores')
local reply, short, new
if waits and outer == '' and not marked and #soonest == 2 and soonest[1] == 'exclusive' and tonumber(soonest[2]) >= now then
  reply, short, new = joined(soonest)
  if reply and not short then
    return reply
  end
end

-- include queue
if reply then
  outlast(queue, new, term)
  return reply
end
local hold = mode == 'exclusive' and mode or id

-- occupied returns until when holds are in the way, nil if none is. last is the hold that
-- ends last, at that time.
local function occupied(last, at)
  if mode == 'shared' and last ~= 'exclusive' then
    at = last and tonumber(redis.call('zscore', ends, 'exclusive') or 0)
  end
  return at and at >= now and at
end

-- preceded returns until when waiters ahead of the given rank may be in the way, nil if none is. It
-- checks only the first of these waiters. Between equal ranks, which only priorities can produce,
-- Redis's own order decides. A dead waiter that first() had to leave is in the way until a later poll
-- has removed it: others may wait behind it.
local function preceded(rank)
  local ahead, its, at = first(alone)
  local latest = ahead and ahead ~= id and its <= rank and math.max(at, now) or nil
  if mode == 'exclusive' then
    ahead, its, at = first(together)
    if ahead and its < rank then
      latest = math.max(latest or now, at)
    end
  end
  return latest
end

-- refused returns the reply while holds or waiters are in the way. leader is the id of the exclusive
-- hold, if the caller has it.
local function refused(rest, last, leader)
  if not last then
    return {0, rest, '', 0}
  elseif last == 'exclusive' then
    return {0, rest, leader or redis.call('hget', holders, last) or '', 0}
  end
  return {0, rest, last, current() - 1}
end

local function enter(mine, leader)
  if mine then
    redis.call('hdel', holders, '') -- lets the ZADD pass at the memory limit
    prolong(hold, lease)
    return {1, mode == 'exclusive' and tonumber(redis.call('hget', holders, 'token')) or 0}
  end
  if outer ~= '' and not held('exclusive', outer) then
    redis.call('hdel', holders, '') -- a demoted master refuses: its data may be old
    return {-2, others('exclusive', outer)}
  end

  local last, at = latest(soonest)
  local place = redis.call('zscore', queue, id)
  local rank = place and tonumber(place)
  local blocked = outer == '' and occupied(last, at)
  if not blocked and outer == '' then
    -- From here on the other waiters matter.
    blocked = preceded(rank or nextToken(tokens, clock) - worth)
  end
  if blocked then
    if not waits then
      return refused(blocked - now, last, leader)
    end
    if place then
      redis.call('zrem', alive, '') -- lets the ZADD pass at the memory limit
    else
      rank = drawToken(tokens, clock, digits) - worth
    end
    redis.call('zadd', queue, whole(rank), id) -- first() removes a waiter without a sign of life
    outlast(queue, sign(alive, notes, now, term, id), term)
    return refused(blocked - now, last, leader)
  end

  local token = 0
  if mode == 'exclusive' then
    token = drawToken(tokens, clock, digits)
    if value then
      redis.call('hset', holders, 'exclusive', id, 'count', 1, 'token', whole(token), 'value', value)
    else
      redis.call('hset', holders, 'exclusive', id, 'count', 1, 'token', whole(token))
    end
    leads()
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

-- Other types do not check the keys of this lock. If a program changed the type of a lock while others still use
-- the old type, there would be two holders.
local mine, leader = held(mode, id)
if marked and outer == '' and not mine and
  (redis.call('exists', otherHash) == 1 or redis.call('zcount', otherEnds, whole(now), '+inf') > 0) then
  return {-4, 0}
end
soonest = reap(term, soonest)
reply = enter(mine, leader)
wake(channels, how, news)
return told(reply)
