-- queue: the state of a lock with a queue of its own, and what its scripts have
-- in common. KEYS[1] to KEYS[6] are (the last four only where the queue matters)
--   holders   hash. Of a hold that is exclusive: exclusive -> hold id, count ->
--             its entries, token -> its fencing token. Of shared ones: hold id
--             -> entries
--   ends      zset: 'exclusive' or hold id -> the server ms in which the hold
--             ends. What is not in it, or has ended, is no hold
--   alone     zset: waiter for an exclusive hold -> rank; the lowest is first
--   together  zset: waiter for a shared hold -> rank
--   alive     zset: waiter -> the server ms until which it counts as alive; see life.lua
--   notes     hash; see life.lua
-- What takes time for each of many is done for some of them only. The rest of the
-- expired holds and of the dead remains until somebody looks again, and counts for
-- nothing; the rest of those who can enter together is told as these come in.
-- Defines  these keys; clock, now: the time in µs and ms; LONGEST_AWAY;
--          live(hold), held(mode, id), others(mode, id), prolong(hold, lease),
--          finish(hold), quit(id), leaves(exclusive, rank), slides(), reap(term),
--          first(queue), current(), below(n), wake(channels, how). A hold is named by
--          'exclusive' or its id; mode is 'exclusive' or 'shared'; term is a waiter
--          lease, ms; channels is what the channel of a waiter begins with
-- include time
-- include ttl
-- include publish
-- include life
local holders, ends = KEYS[1], KEYS[2]
local alone, together, alive, notes = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local clock = micros()
local now = math.floor(clock / 1000)

-- LONGEST_AWAY is for how long, in ms, waiters that are all silent may still be there:
-- more than they bear to be without an answer by default (a watchdog lease, 30 s).
local LONGEST_AWAY = 60000

-- most is how many holds, and how many waiters, one script removes.
local most = 100

-- WINDOW is how many of those who can share the lock have been told at any time, and
-- not come in yet.
local WINDOW = 32

-- gone is what has left that may have kept others out: the lowest rank of it, and
-- whether it was exclusive. slid is how many have left the shared queue.
local gone
local slid = 0

local function leaves(exclusive, rank)
  gone = gone or {rank = rank}
  gone.exclusive = gone.exclusive or exclusive
  gone.rank = math.min(gone.rank, rank)
end

local function slides()
  slid = slid + 1
end

-- above is a bound for scores higher than n.
local function above(n)
  return n == -math.huge and '-inf' or string.format('(%.0f', n)
end

local function below(n)
  return string.format('(%.0f', n)
end

-- current is how many holds there are.
local function current()
  return redis.call('zcount', ends, string.format('%.0f', now), '+inf')
end

-- live is whether there is a hold. It ends when its last ms is over, as a key does.
local function live(hold)
  local at = redis.call('zscore', ends, hold)
  return at and tonumber(at) >= now
end

-- held is whether there is a hold of the given mode with an id. 'exclusive' is no hold
-- id, though somebody may ask for it.
local function held(mode, id)
  if mode == 'exclusive' then
    return live(mode) and redis.call('hget', holders, mode) == id
  end
  return id ~= 'exclusive' and live(id)
end

-- others is 1 if there are holds that keep this one, of the given mode, out.
local function others(mode, id)
  if mode == 'shared' then
    return live('exclusive') and not held('exclusive', id) and 1 or 0
  end
  local n = current()
  if held('shared', id) then
    n = n - 1
  end
  return n > 0 and 1 or 0
end

-- prolong makes a hold last for at least lease ms.
local function prolong(hold, lease)
  local at = redis.call('zscore', ends, hold)
  if not at or tonumber(at) < now + lease then
    redis.call('zadd', ends, now + lease, hold)
  end
  lengthen(holders, lease)
  lengthen(ends, lease)
end

-- finish ends a hold.
local function finish(hold)
  redis.call('zrem', ends, hold)
  if hold == 'exclusive' then
    redis.call('hdel', holders, 'exclusive', 'count', 'token')
  else
    redis.call('hdel', holders, hold)
  end
  leaves(hold == 'exclusive', -math.huge)
end

-- quit takes a waiter out of the queue.
local function quit(id)
  for _, queue in ipairs({alone, together}) do
    local rank = redis.call('zscore', queue, id)
    if rank then
      redis.call('zrem', queue, id)
      leaves(queue == alone, tonumber(rank))
      if queue == together then
        slides()
      end
    end
  end
  unsign(alive, notes, id)
end

-- reap takes away what is over: holds, and waiters that gave no sign of life for
-- as long as a waiter lease.
local function reap(term)
  for _, hold in ipairs(redis.call('zrangebyscore', ends, '-inf', below(now), 'limit', 0, most)) do
    finish(hold)
  end
  local _, silent, forgiven = listen(alive, notes, now, term)
  if forgiven then
    for _, key in ipairs({alone, together, alive, notes}) do
      lengthen(key, pardonEnds - now + LONGEST_AWAY)
    end
  end
  if silent then
    for _, id in ipairs(silenced(alive, now, most)) do
      quit(id)
    end
  end
end

-- first is who is first in one of the queues, its rank, and until when it counts
-- as alive. Without any sign of life, which only an eviction can take away, a
-- waiter might be there for ever. If there are more of the dead than one script
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
-- others need not know. All who share and are before the first exclusive
-- waiter come in together; an exclusive one comes alone.
local function wake(channels, how)
  if not gone and slid == 0 or live('exclusive') then
    return
  end
  local next, rank, at = first(alone)
  local to = next and below(rank) or '+inf'
  if gone and gone.exclusive then
    for _, id in ipairs(redis.call('zrangebyscore', together, above(gone.rank), to, 'limit', 0, WINDOW)) do
      announce(how, channels .. id, '0')
    end
  end
  if slid > 0 then
    -- They make room in the window for as many that come after it.
    local room = math.min(slid, WINDOW)
    for _, id in ipairs(redis.call('zrangebyscore', together, '-inf', to, 'limit', WINDOW - room, room)) do
      announce(how, channels .. id, '0')
    end
  end
  if next and gone and gone.rank <= rank and current() == 0 then
    local _, before = first(together)
    if not before or before > rank then
      announce(how, channels .. next, '0')
    end
  end
  if next and at <= now then
    -- It is dead: somebody who lives goes on with removing.
    announce(how, channels .. redis.call('zrevrange', alive, 0, 0)[1], '0')
  end
end
