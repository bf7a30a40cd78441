-- turns: readers and writers take turns, unless the lock prefers readers. Three zsets:
--   {N}:rlock:writers   writers that wait: hold id -> alive until, ms
--   {N}:rlock:readers   readers that wait, the first of each client: the same
--   {N}:rlock:admitted  readers that go before writers: the same; and 'round' ->
--                       how often readers were admitted, as a negative number
-- A waiting writer keeps new readers out. A writer that leaves admits the waiting readers, and no writer enters before
-- they have entered. Other readers of the same clients enter after them, because the round is no longer the one in which
-- they were refused.
--
-- Defines  aliveFor(zset), await(zset, id, ms), round(admitted),
--          come(readers, admitted, id), admit(readers, admitted)
-- include time
-- include ttl

local function millis()
  return math.floor(micros() / 1000)
end

-- aliveFor returns how long any waiter of a zset is still alive, in ms; 0: none is.
local function aliveFor(zset)
  local last = redis.call('zrevrange', zset, 0, 0, 'withscores')
  if not last[2] or tonumber(last[2]) <= 0 then
    return 0
  end
  return math.max(last[2] - millis(), 0)
end

-- await gives a waiter a place in a zset for ms. It removes dead waiters first, which also
-- lets the ZADD pass on a server at its memory limit.
local function await(zset, id, ms)
  local now = millis()
  redis.call('zremrangebyscore', zset, 0, now)
  redis.call('zadd', zset, now + ms, id)
  lengthen(zset, ms)
end

local function round(admitted)
  return tonumber(redis.call('zscore', admitted, 'round')) or 0
end

-- come removes a reader from the waiting ones, and reports whether it kept writers out.
-- When all admitted readers have come, only the round remains, for those behind them.
local function come(readers, admitted, id)
  redis.call('zrem', readers, id)
  if redis.call('zrem', admitted, id) == 0 then
    return false
  end
  if redis.call('zcard', admitted) <= 1 then
    redis.call('pexpire', admitted, 1000)
  end
  return true
end

-- admit lets the waiting readers, if the lock has them, go before the next writer. It runs after
-- other writes, so it must not fail: then the readers wait for one more writer.
local function admit(readers, admitted)
  if not readers or redis.pcall('exists', readers) ~= 1 then
    return
  end
  local ms = redis.pcall('pttl', readers)
  redis.pcall('zunionstore', admitted, 2, admitted, readers, 'aggregate', 'max')
  redis.pcall('del', readers)
  redis.pcall('zremrangebyscore', admitted, 0, millis())
  redis.pcall('zincrby', admitted, -1, 'round')
  redis.pcall('pexpire', admitted, ms)
end
