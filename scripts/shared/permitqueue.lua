-- permitqueue: the state of a PermitSemaphore WithFairness, which has a queue of waiters, and
-- what its scripts have in common. Only the first of the queue may enter, with one exception: a
-- waiter may pass all waiters before it, if these were woken to enter and have been silent since,
-- and there are permits for these waiters too. No script reads more than FAR waiters, and a script removes a bounded
-- number of expired holds and of dead waiters.
--
-- KEYS[1]  state: hash, total -> permits; free -> how many are free, maybe negative; hold id
--          -> how many it has. No total: no number is set
-- KEYS[2]  ends: zset, hold id -> the server ms in which the hold ends
-- KEYS[3]  queue: zset, waiter -> rank; the lowest is first
-- KEYS[4]  alive: zset, waiter -> the server ms until which it counts as alive; see
--          life.lua
-- KEYS[5]  notes: hash; see life.lua; and waiter -> how many permits it needs, and the ms in which it
--          was woken to enter, if it was and has not polled since. KEYS[3..5] are absent
--          where the queue is not needed
--
-- Defines  these keys; clock, now: the time in µs and ms; LONGEST_AWAY; free(),
--          live(hold), below(n), prolong(hold, lease), finish(hold), quit(id), changes(),
--          grow(n), reap(term), first(), passes(id, n, left, term), wake(channels, how, term).
--          term is a waiter lease, ms; channels is the prefix of the channels of clients with waiters
-- include time
-- include ttl
-- include publish
-- include life
local state, ends, queue, alive, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local clock = micros()
local now = math.floor(clock / 1000)

-- See shared/queue.lua for the next two.
local LONGEST_AWAY = 60000
local most = 100

-- NEAR is how many waiters are woken when the first one counts as dead; FAR is how far scripts walk.
local NEAR, FAR = 8, 100

-- changed: the first waiter may have room now, or another waiter is first.
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

-- first returns the first waiter, until when it counts as alive, and the waiters near it. It removes a waiter without
-- any sign of life: only an eviction can remove the sign. If there are more dead waiters than one script may remove, the
-- result is one of them.
local function first()
  while true do
    local near = redis.call('zrange', queue, 0, NEAR - 1)
    local id = near[1]
    if not id then
      return nil
    end
    local at = redis.call('zscore', alive, id)
    at = at and lives(at) or now
    if at > now or most == 0 then
      return id, at, near
    end
    most = most - 1
    quit(id)
  end
end

-- silentAt returns in which ms a waiter that was woken in another is silent: a twentieth of a waiter
-- lease later.
local function silentAt(told, term)
  return told + math.floor(term / 20)
end

-- needs returns how many permits a waiter needs, by its note, and when it was woken to enter, or nil.
local function needs(note)
  local n, told = string.match(note or '1', '^(%d+) ?(%d*)$')
  return tonumber(n), tonumber(told)
end

-- passes returns in how many ms (0 or less: now) a request for n of the free permits may pass all waiters before it, if
-- these give no sign of life; or nil if the free permits are not enough for these waiters too, or they were not woken. So
-- the request takes no waiter's permits, and does not overtake a live waiter.
local function passes(id, n, left, term)
  local spare = left - n
  if spare < 1 then
    return nil -- each of them needs one
  end
  local before = redis.call('zrange', queue, 0, math.min(spare, FAR))
  local all, wait = redis.call('hmget', notes, unpack(before)), 0
  for i, other in ipairs(before) do
    if other == id then
      return wait
    end
    local need, told = needs(all[i])
    spare = spare - need
    if spare < 0 or not told then
      return nil
    end
    wait = math.max(wait, silentAt(told, term) - now)
  end
  if redis.call('zcard', queue) > #before then
    return nil
  end
  return wait
end

-- call wakes a waiter, and reports whether its client is subscribed. The waiters of a client share one channel.
local function call(channels, how, id)
  return announce(how, channels .. (id:match('^(.*):') or ''), id) > 0
end

-- wake wakes the first waiter, if there is room for it. If that waiter's client is not subscribed, or it was woken and is
-- silent, wake wakes the next waiter too.
local function wake(channels, how, term)
  if not changed then
    return
  end
  local id, at = first()
  if not id then
    return
  elseif at <= now then
    -- It is dead: wake a live waiter, which continues the removal.
    call(channels, how, redis.call('zrevrange', alive, 0, 0)[1])
    return
  end
  local left, line = free(), nil
  for i = 1, FAR do
    local need, told = needs(redis.call('hget', notes, id))
    left = left - need
    if left < 0 then
      return
    elseif not told then
      redis.call('hset', notes, id, string.format('%.0f %.0f', need, now))
    end
    local hears = call(channels, how, id)
    if left == 0 or hears and not (told and silentAt(told, term) <= now) then
      return
    end
    line = line or redis.call('zrange', queue, 0, math.min(left, FAR))
    id = line[i + 1]
    if not id then
      return
    end
  end
end
