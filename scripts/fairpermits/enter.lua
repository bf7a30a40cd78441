-- fairpermits/enter: take permits of a PermitSemaphore WithFairness, or join its queue.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  tombstone of this hold
-- KEYS[7]  fencing clock, from which ranks are drawn
-- KEYS[8]  the number of a PermitSemaphore without fairness, or another lock
-- KEYS[9]  see shared/setting.lua; absent if there is no ARGV[8]
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  how many permits it takes
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  '1': wait, that is join the queue and give a sign of life
-- ARGV[6]  prefix of the channels of clients with waiters
-- ARGV[7]  'publish', 'spublish', 'both' or 'none'
-- ARGV[8]  how many permits to set if no number is set; absent: none
-- Reply    {1, free, 0}     taken: how many more are free
--          {0, rest, holder, others, all, free}  not now: poll again within rest ms (-1: a
--                           message comes). The hold that ends first or '', how many others
--                           there are, and how many permits
--          {-1, 0}          this hold was abandoned: a late copy, nothing done
--          {-3, ms}         see shared/quarantine.lua
--          {-4, 0}          another type of this name is in use
--          {-5, 0}          no number of permits is set, and there is no ARGV[8]
--          {-6, ...}        as 0, and there are too few even if all were free: the waiter
--                           does not stand in the queue, where it would keep all others out
-- Caller   Acquire, TryAcquire of a PermitSemaphore WithFairness
-- Twice    An existing hold keeps its permits, and a waiter its rank. A copy that comes
--          after the hold has ended finds its tombstone, which the client leaves if it
--          knows of a copy that may be under way.
-- Memory   At its memory limit Redis refuses the first write of a grant and of a new place,
--          and so the whole script. A waiter in the queue stays alive all the same.

-- include quarantine when served
-- include token
-- include permitqueue
-- include record
-- include setting
local tombstone, tokens, other = KEYS[6], KEYS[7], KEYS[8]
local id, lease, n, term = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local waits, channels, how = ARGV[5] == '1', ARGV[6], ARGV[7]

local function refused(code, all, left, rest)
  local next = redis.call('zrange', ends, 0, 0, 'withscores')
  if not next[1] then
    return {code, rest or -1, '', 0, all, left}
  end
  rest = rest or tonumber(next[2]) + 1 - now
  return {code, rest, next[1], redis.call('zcard', ends) - 1, all, left}
end

-- among reports whether a waiter is, or will be, among those near the first.
local function among(near, id)
  for _, other in ipairs(near) do
    if other == id then
      return true
    end
  end
  return #near < NEAR
end

local function enter()
  if live(id) then
    prolong(id, lease)
    return {1, free(), 0}
  elseif redis.call('hexists', state, id) == 1 then
    finish(id) -- expired, and not removed yet
  end
  local total = tonumber(redis.call('hget', state, 'total'))
  if not total and ARGV[8] then
    total = tonumber(ARGV[8])
    redis.call('hset', state, 'total', ARGV[8], 'free', ARGV[8])
    setting(KEYS[9], tombstone, '0')
  elseif not total then
    redis.call('zrem', ends, '') -- a demoted master refuses: its data may be old
    return {-5, 0}
  end
  if n > total then
    quit(id)
    return refused(-6, total, free(), -1)
  end
  local head, at, near = first()
  local left, rest = free(), nil -- rest: look again within it, for others that go first
  if head and head ~= id then
    rest = passes(id, n, left, term) or among(near, id) and at > now and at - now + 1 or -1
  end
  if rest and rest ~= 0 or left < n then
    if waits then
      local place = redis.call('zscore', queue, id)
      if place then
        redis.call('zrem', alive, '') -- lets the ZADD pass at the memory limit
      else
        local arrival = nextToken(tokens, clock)
        redis.call('set', tokens, arrival)
        redis.call('zadd', queue, arrival, id)
      end
      sign(alive, notes, now, term, id)
      redis.call('hset', notes, id, n)
      for _, key in ipairs({queue, alive, notes}) do
        lengthen(key, term + LONGEST_AWAY)
      end
    end
    return refused(0, total, left, rest)
  end
  redis.call('hincrby', state, 'free', -n)
  redis.call('hset', state, id, n)
  prolong(id, lease)
  if head then
    quit(id)
  end
  return {1, left - n, 0}
end

if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
elseif redis.call('exists', other) == 1 then
  return {-4, 0}
end
reap(term)
local reply = enter()
wake(channels, how, term)
return told(reply)
