-- queued: the state of a lock with a queue of its own, and what its scripts have
-- in common. KEYS[1] to KEYS[6] are (the last four only where the queue matters)
--   holders   hash. Of a hold that is exclusive: exclusive -> stay id, count ->
--             its entries, token -> its fencing token. Of shared ones: stay id
--             -> entries
--   ends      zset: 'exclusive' or stay id -> the server ms in which the hold
--             ends. What does not stand here, or has ended, is no hold
--   alone     zset: waiter for an exclusive hold -> rank; the lowest is first
--   together  zset: waiter for a shared hold -> rank
--   alive     zset: waiter -> the server ms until which it counts as alive; see signs
--   notes     hash; see signs
-- What takes time for each of many is done for some of them only. The rest of the
-- expired holds and of the dead stays until somebody looks again, and counts for
-- nothing; the rest of those who can enter together is told as these come in.
local holders, ends = KEYS[1], KEYS[2]
local alone, together, alive, notes = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- outage is for how long, in ms, waiters that are all silent may still be there:
-- more than they bear to be without an answer by default (a watchdog lease, 30 s).
local outage = 60000

-- most is how many holds, and how many waiters, one script removes.
local most = 100

-- window is how many of those who can share the lock have been told at any time, and
-- not come in yet.
local window = 32

-- left is what has gone that may have kept others out: the lowest rank of it,
-- and whether it was exclusive. slid is how many have left the shared queue.
local left
local slid = 0

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
      if queue == together then
        slid = slid + 1
      end
    end
  end
  unsign(alive, notes, stay)
end

-- reap takes away what is over: holds, and waiters that gave no sign of life for
-- as long as a waiter lease.
local function reap(patience)
  for _, hold in ipairs(redis.call('zrangebyscore', ends, '-inf', below(now), 'limit', 0, most)) do
    finish(hold)
  end
  local _, silent, forgiven = listen(alive, notes, now, patience)
  if forgiven then
    for _, key in ipairs({alone, together, alive, notes}) do
      grow(key, pardonEnds - now + outage)
    end
  end
  if silent then
    local dead = silenced(alive, now, most)
    for _, stay in ipairs(dead) do
      quit(stay)
    end
  end
end

-- first is who is first in one of the queues, its rank, and until when it counts
-- as alive. Without any sign of life, which only an eviction can take away, a
-- waiter might stand there for ever. If there are more of the dead than one script
-- may remove, it is one of them.
local function first(queue)
  while true do
    local entry = redis.call('zrange', queue, 0, 0, 'withscores')
    if not entry[1] then
      return nil
    end
    local at = redis.call('zscore', alive, entry[1])
    at = at and lives(at) or now
    if at > now or most == 0 then
      return entry[1], tonumber(entry[2]), at
    end
    most = most - 1
    quit(entry[1])
  end
end

-- wake tells those who can enter now and could not before what has left; the
-- others need not know. All who share and stand before the first exclusive
-- waiter come in together; an exclusive one comes alone.
local function wake(prefix, how)
  if not left and slid == 0 or live('exclusive') then
    return
  end
  local next, rank, at = first(alone)
  local to = next and below(rank) or '+inf'
  if left and left.exclusive then
    for _, stay in ipairs(redis.call('zrangebyscore', together, above(left.rank), to, 'limit', 0, window)) do
      announce(how, prefix .. stay, '0')
    end
  end
  if slid > 0 then
    -- They make room in the window for as many that come after it.
    local room = math.min(slid, window)
    for _, stay in ipairs(redis.call('zrangebyscore', together, '-inf', to, 'limit', window - room, room)) do
      announce(how, prefix .. stay, '0')
    end
  end
  if next and left and left.rank <= rank and redis.call('zcount', ends, string.format('%.0f', now), '+inf') == 0 then
    local _, before = first(together)
    if not before or before > rank then
      announce(how, prefix .. next, '0')
    end
  end
  if next and at <= now then
    -- It is dead: somebody who lives goes on with removing.
    announce(how, prefix .. redis.call('zrevrange', alive, 0, 0)[1], '0')
  end
end
