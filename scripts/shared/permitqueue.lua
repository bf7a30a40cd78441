-- permitqueue: the state of a PermitSemaphore WithFairness, which has a queue of waiters, and
-- what its scripts have in common. Only the first of the queue may enter. Nothing here walks
-- the queue, and a script removes a bounded number of expired holds and of dead waiters.
--
-- KEYS[1]  state: hash, total -> permits; free -> how many are free, maybe negative; hold id
--          -> how many it has. No total: none were ever set
-- KEYS[2]  ends: zset, hold id -> the server ms in which the hold ends
-- KEYS[3]  queue: zset, waiter -> rank; the lowest is first
-- KEYS[4]  alive: zset, waiter -> the server ms until which it counts as alive; see
--          life.lua
-- KEYS[5]  notes: hash; see life.lua; and waiter -> how many permits it needs. KEYS[3..5]
--          are absent where the queue is not needed
--
-- Defines  these keys; clock, now: the time in µs and ms; LONGEST_AWAY; free(),
--          live(hold), below(n), prolong(hold, lease), finish(hold), quit(id), changes(),
--          grow(n), reap(term), first(), wake(channels, how). term is a waiter lease, ms; channels
--          is the prefix of the channels of clients with waiters
-- include time
-- include ttl
-- include publish
-- include life
local state, ends, queue, alive, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local clock = micros()
local now = math.floor(clock / 1000)

-- See shared/queue.lua for these two.
local LONGEST_AWAY = 60000
local most = 100

-- changed: there may be room for the first waiter, or it is another one.
local changed = false

local function changes()
  changed = true
end

local function below(n)
  return string.format('(%.0f', n)
end

local function free()
  return tonumber(redis.call('hget', state, 'free') or 0)
end

-- grow changes how many permits there are by n, and returns the reply, maybe an error.
local function grow(n)
  local reply = redis.pcall('hincrby', state, 'total', n)
  if type(reply) ~= 'table' then
    redis.call('hincrby', state, 'free', n)
    changes()
  end
  return reply
end

-- live reports whether a hold exists. It ends when its last ms is over, as a key does.
local function live(hold)
  local at = redis.call('zscore', ends, hold)
  return at and tonumber(at) >= now
end

-- prolong makes a hold last for at least lease ms.
local function prolong(hold, lease)
  local at = redis.call('zscore', ends, hold)
  if not at or tonumber(at) < now + lease then
    redis.call('zadd', ends, now + lease, hold)
  end
end

-- finish ends a hold, once.
local function finish(hold)
  redis.call('zrem', ends, hold)
  local n = redis.call('hget', state, hold)
  if n then
    redis.call('hdel', state, hold)
    redis.call('hincrby', state, 'free', n)
  end
  changes()
end

-- quit takes a waiter out of the queue.
local function quit(id)
  if redis.call('zrem', queue, id) == 1 then
    changes()
  end
  unsign(alive, notes, id)
  redis.call('hdel', notes, id)
end

-- reap removes expired holds, and waiters without a sign of life for a waiter lease.
local function reap(term)
  for _, hold in ipairs(redis.call('zrangebyscore', ends, '-inf', below(now), 'limit', 0, most)) do
    finish(hold)
  end
  local _, silent, forgiven = listen(alive, notes, now, term)
  if forgiven then
    for _, key in ipairs({queue, alive, notes}) do
      lengthen(key, pardonEnds - now + LONGEST_AWAY)
    end
  end
  if silent then
    for _, id in ipairs(silenced(alive, now, most)) do
      quit(id)
    end
  end
end

-- first returns the first waiter and until when it counts as alive. One without any sign of
-- life is removed: only an eviction can take the sign away. If there are more dead waiters
-- than one script may remove, the result is one of them.
local function first()
  while true do
    local id = redis.call('zrange', queue, 0, 0)[1]
    if not id then
      return nil
    end
    local at = redis.call('zscore', alive, id)
    at = at and lives(at) or now
    if at > now or most == 0 then
      return id, at
    end
    most = most - 1
    quit(id)
  end
end

-- call wakes a waiter. Its client listens for all its waiters on one channel.
local function call(channels, how, id)
  announce(how, channels .. (id:match('^(.*):') or ''), id)
end

-- wake wakes the first waiter, if there is room for it.
local function wake(channels, how)
  if not changed then
    return
  end
  local id, at = first()
  if not id then
    return
  elseif at <= now then
    -- It is dead: a live waiter is woken to go on with removing.
    call(channels, how, redis.call('zrevrange', alive, 0, 0)[1])
  elseif tonumber(redis.call('hget', notes, id) or 1) <= free() then
    call(channels, how, id)
  end
end
