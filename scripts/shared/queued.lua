-- queued: the state of a lock with a queue of its own, and what its scripts have
-- in common. KEYS[1] to KEYS[5] are (the last three only where the queue matters)
--   holders   hash. Of a hold that is exclusive: exclusive -> stay id, count ->
--             its entries, token -> its fencing token. Of shared ones: stay id
--             -> entries
--   ends      zset: 'exclusive' or stay id -> the server ms in which the hold
--             ends. What does not stand here, or has ended, is no hold
--   alone     zset: waiter for an exclusive hold -> rank; the lowest is first
--   together  zset: waiter for a shared hold -> rank
--   alive     zset: waiter -> the server ms until which it counts as alive
local holders, ends = KEYS[1], KEYS[2]
local alone, together, alive = KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- outage is for how long, in ms, waiters that are all silent may still be there:
-- more than they bear to be without an answer by default (a watchdog lease, 30 s).
local outage = 60000

-- left is what has gone that may have kept others out: the lowest rank of it,
-- and whether it was exclusive.
local left

local function gone(exclusive, rank)
  left = left or {rank = rank}
  left.exclusive = left.exclusive or exclusive
  left.rank = math.min(left.rank, rank)
end

local function grow(key, ms)
  if redis.call('pttl', key) < ms then
    redis.call('pexpire', key, ms)
  end
end

-- above is a bound for scores higher than n.
local function above(n)
  return n == -math.huge and '-inf' or string.format('(%.0f', n)
end

local function below(n)
  return string.format('(%.0f', n)
end

-- live is whether a hold stands. It ends when its last ms is over, as a key does.
local function live(hold)
  local at = redis.call('zscore', ends, hold)
  return at and tonumber(at) >= now
end

-- held is whether a stay has a hold of the given mode. 'exclusive' is no stay
-- id, though somebody may ask for it.
local function held(mode, stay)
  if mode == 'exclusive' then
    return live(mode) and redis.call('hget', holders, mode) == stay
  end
  return stay ~= 'exclusive' and live(stay)
end

-- others is 1 if holds stand that keep a stay from one of the given mode.
local function others(mode, stay)
  if mode == 'shared' then
    return live('exclusive') and not held('exclusive', stay) and 1 or 0
  end
  local n = redis.call('zcount', ends, string.format('%.0f', now), '+inf')
  if held('shared', stay) then
    n = n - 1
  end
  return n > 0 and 1 or 0
end

-- lengthen makes a hold last for at least lease ms.
local function lengthen(hold, lease)
  local at = redis.call('zscore', ends, hold)
  if not at or tonumber(at) < now + lease then
    redis.call('zadd', ends, now + lease, hold)
  end
  grow(holders, lease)
  grow(ends, lease)
end

-- finish ends a hold.
local function finish(hold)
  redis.call('zrem', ends, hold)
  if hold == 'exclusive' then
    redis.call('hdel', holders, 'exclusive', 'count', 'token')
  else
    redis.call('hdel', holders, hold)
  end
  gone(hold == 'exclusive', -math.huge)
end

-- quit takes a waiter out of the queue.
local function quit(stay)
  for _, queue in ipairs({alone, together}) do
    local rank = redis.call('zscore', queue, stay)
    if rank then
      redis.call('zrem', queue, stay)
      gone(queue == alone, tonumber(rank))
    end
  end
  redis.call('zrem', alive, stay)
end

-- reap takes away what is over: holds, and waiters that gave no sign of life for
-- as long as a waiter lease, patience.
--
-- If nobody was heard for most of one, although each looks every third of it,
-- then it may be the server that was away, not they: what would be dead is given
-- one more lease, or they would all lose their places. Once only, or visitors
-- would keep the dead in the queue: the half ms marks a sign that was given.
local function reap(patience)
  for _, hold in ipairs(redis.call('zrangebyscore', ends, '-inf', below(now))) do
    finish(hold)
  end
  local dead = redis.call('zrangebyscore', alive, '-inf', below(now), 'withscores')
  if #dead == 0 then
    return
  end
  local last = redis.call('zrevrange', alive, 0, 0, 'withscores')[2]
  local silent = tonumber(last) < now + patience / 3
  for i = 1, #dead, 2 do
    local at = tonumber(dead[i + 1])
    if silent and at == math.floor(at) and at > now - outage then
      redis.call('zrem', alive, '') -- lets the ZADD pass at the memory limit
      redis.call('zadd', alive, now + patience + 0.5, dead[i])
      for _, key in ipairs({alone, together, alive}) do
        grow(key, patience + outage)
      end
    else
      quit(dead[i])
    end
  end
end

-- first is who is first in one of the queues, its rank, and until when it counts
-- as alive. Without any sign of life, which only an eviction can take away, a
-- waiter might stand there for ever.
local function first(queue)
  while true do
    local entry = redis.call('zrange', queue, 0, 0, 'withscores')
    if not entry[1] then
      return nil
    end
    local at = redis.call('zscore', alive, entry[1])
    if at then
      return entry[1], tonumber(entry[2]), tonumber(at)
    end
    quit(entry[1])
  end
end

-- wake tells those who can enter now and could not before what has left; the
-- others need not know. All who share and stand before the first exclusive
-- waiter come in together; an exclusive one comes alone.
local function wake(prefix, how)
  if not left or live('exclusive') then
    return
  end
  local next, rank = first(alone)
  if left.exclusive then
    local to = next and below(rank) or '+inf'
    for _, stay in ipairs(redis.call('zrangebyscore', together, above(left.rank), to)) do
      announce(how, prefix .. stay, '0')
    end
  end
  if next and left.rank <= rank and redis.call('exists', ends) == 0 then
    local _, before = first(together)
    if not before or before > rank then
      announce(how, prefix .. next, '0')
    end
  end
end
