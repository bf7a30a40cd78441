-- queue: the state of a FairReadWriteLock, PriorityLock or Election, which has a queue of
-- waiters, and what its scripts have in common. The work of one script is bounded: expired holds
-- and dead waiters that it leaves have no effect, and later scripts remove them; readers that can
-- enter together are woken a few at a time. The keys are in queuekeys.lua.
--
-- Defines  live(hold), latest(soonest), held(mode, id),
--          others(mode, id), prolong(hold, lease), finish(hold), quit(id),
--          leaves(exclusive, rank), slides(), reap(term, soonest), first(queue),
--          outlast(queue, new, term), current(), below(n), leads(),
--          wake(channels, how, news). A hold is named by 'exclusive' or its id; mode is
--          'exclusive' or 'shared'; term is a waiter lease, ms; channels is the prefix of
--          the channels of clients with waiters; news is the channel on which a change of
--          the exclusive hold is announced, or nil
-- include queuekeys
-- include ttl
-- include publish
-- include life

-- most is how many holds, and how many waiters, one script removes.
local most = 100

-- WINDOW is the most shared waiters that are woken and have not entered yet.
local WINDOW = 32

-- gone describes the holds and waiters that have left and may have kept others out: their lowest rank, and whether any
-- was exclusive. slid is how many have left the shared queue.
local gone
local slid = 0

-- changed: the exclusive hold has ended or begun.
local changed = false

local function leaves(exclusive, rank)
  gone = gone or {rank = rank}
  gone.exclusive = gone.exclusive or exclusive
  gone.rank = math.min(gone.rank, rank)
end

local function slides()
  slid = slid + 1
end

local function leads()
  changed = true
end

-- above is a bound for scores higher than n.
local function above(n)
  return n == -math.huge and '-inf' or '(' .. whole(n)
end

local function below(n)
  return '(' .. whole(n)
end

-- current returns the number of holds.
local function current()
  return redis.call('zcount', ends, whole(now), '+inf')
end

-- latest returns the hold that ends last, and when, or nil without holds. soonest is the result of reap: if it has only one
-- hold, that is also the last one.
local function latest(soonest)
  local entry = soonest and #soonest <= 2 and soonest or redis.call('zrevrange', ends, 0, 0, 'withscores')
  local at = tonumber(entry[2] or 0)
  if at >= now then
    return entry[1], at
  end
end

-- live reports whether a hold exists. It ends when its last ms is over, as a key does.
local function live(hold)
  local at = redis.call('zscore', ends, hold)
  return at and tonumber(at) >= now
end

-- held reports whether a hold of the given mode with an id exists. If it has read the id of the exclusive hold, it returns
-- that too. A caller may pass 'exclusive', which is no hold id.
local function held(mode, id)
  if mode == 'exclusive' then
    local whose = redis.call('hget', holders, mode)
    return whose == id and live(mode), whose
  end
  return id ~= 'exclusive' and live(id)
end

-- others returns 1 if other holds keep a hold of the given mode out.
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
    redis.call('zadd', ends, whole(now + lease), hold)
  end
  lengthen(holders, lease)
  lengthen(ends, lease)
end

-- finish ends a hold.
local function finish(hold)
  redis.call('zrem', ends, hold)
  if hold == 'exclusive' then
    redis.call('hdel', holders, 'exclusive', 'count', 'token', 'value', 'edition')
    changed = true
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

-- reap removes expired holds, and waiters without a sign of life for a waiter lease. It
-- returns the hold that ends first, and the next, as entries of ends, if no hold had expired.
-- soonest are these two, if the caller has read them.
local function reap(term, soonest)
  soonest = soonest or redis.call('zrange', ends, '0', '1', 'withscores')
  if soonest[2] and tonumber(soonest[2]) < now then
    for _, hold in ipairs(redis.call('zrangebyscore', ends, '-inf', below(now), 'limit', 0, most)) do
      finish(hold)
    end
    soonest = nil
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
  return soonest
end

-- first returns the first waiter of a queue, its rank, and until when it counts as alive.
-- A waiter without any sign of life is removed too: only an eviction can take the sign
-- away, and nothing else would ever remove the waiter. If there are more dead waiters than
-- one script may remove, the result is one of them.
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

-- outlast gives a queue, the signs of life and the notes a TTL beyond the next polls, in case no waiter ever comes back.
-- It shortens no TTL: others may have longer waiter leases. The signs and the notes live at least as long as each queue.
-- So the TTL of the queue is the TTL of all three, unless one of the other two may be new.
local function outlast(queue, new, term)
  local ttl = LONGEST_AWAY + term
  local kept = redis.call('pttl', queue)
  if not outlasts(kept, term) then
    redis.call('pexpire', queue, ttl)
  elseif not new then
    return
  end
  if new then
    ttl = math.max(ttl, kept, redis.call('pttl', queue == alone and together or alone))
  end
  lengthen(alive, ttl)
  lengthen(notes, ttl)
end

-- call wakes a waiter. The waiters of a client share one channel, and the message names the waiter.
local function call(channels, how, id)
  announce(how, channels .. (id:match('^(.*):') or ''), id)
end

-- wake wakes the waiters that can enter now and could not before. All shared waiters before the first exclusive one enter
-- together; an exclusive one enters alone.
local function wake(channels, how, news)
  if news and changed then
    announce(how, news, '0')
  end
  if not gone and slid == 0 or live('exclusive') then
    return
  end
  local next, rank, at = first(alone)
  local to = next and below(rank) or '+inf'
  if gone and gone.exclusive then
    for _, id in ipairs(redis.call('zrangebyscore', together, above(gone.rank), to, 'limit', 0, WINDOW)) do
      call(channels, how, id)
    end
  end
  if slid > 0 then
    -- Each waiter that left makes room in the window for one behind it.
    local room = math.min(slid, WINDOW)
    for _, id in ipairs(redis.call('zrangebyscore', together, '-inf', to, 'limit', WINDOW - room, room)) do
      call(channels, how, id)
    end
  end
  if next and gone and gone.rank <= rank and current() == 0 then
    local _, before = first(together)
    if not before or before > rank then
      call(channels, how, next)
    end
  end
  if next and at <= now then
    -- It is dead: wake a live waiter, which continues the removal.
    call(channels, how, redis.call('zrevrange', alive, 0, 0)[1])
  end
end
