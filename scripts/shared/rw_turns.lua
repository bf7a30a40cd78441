-- rw_turns: whose turn it is, unless the lock prefers readers. Three zsets:
--   {N}:rlock:writers   writers that wait: stay id -> alive until, ms
--   {N}:rlock:readers   readers that wait, the first of each client: the same
--   {N}:rlock:admitted  readers that go before writers: the same; and 'round' ->
--                       how often readers were admitted, as a negative number
-- A writer that waits keeps new readers out. One that leaves admits the readers
-- that wait, and no writer comes in before they have. The others of their clients
-- come in after them by the round: it is not the one that they were refused in.
local writers, readers, admitted = timers .. 'rlock:writers', timers .. 'rlock:readers', timers .. 'rlock:admitted'

local function millis()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- stays is for how long somebody of a zset is alive, in ms; 0: nobody is.
local function stays(zset)
  local last = redis.call('zrevrange', zset, 0, 0, 'withscores')
  if not last[2] or tonumber(last[2]) <= 0 then
    return 0
  end
  return math.max(last[2] - millis(), 0)
end

-- await keeps a place in a zset for so many ms. What it removes first are the
-- dead; that also lets the ZADD pass on a server at its memory limit.
local function await(zset, ms)
  local now = millis()
  redis.call('zremrangebyscore', zset, 0, now)
  redis.call('zadd', zset, now + ms, stay)
  lengthen(zset, ms)
end

local function round()
  return tonumber(redis.call('zscore', admitted, 'round')) or 0
end

-- come takes a reader out of those who wait, and is whether it kept writers out.
-- When all that were admitted have come, the round is left for those behind them.
local function come()
  redis.call('zrem', readers, stay)
  if redis.call('zrem', admitted, stay) == 0 then
    return false
  end
  if redis.call('zcard', admitted) <= 1 then
    redis.call('pexpire', admitted, 1000)
  end
  return true
end

-- admit lets the waiting readers go before the next writer. It comes after a
-- write, and tolerates that the keys are on their way to another node: then the
-- readers wait for one more writer.
local function admit()
  if redis.pcall('exists', readers) ~= 1 then
    return
  end
  local ms = redis.pcall('pttl', readers)
  redis.pcall('zunionstore', admitted, 2, admitted, readers, 'aggregate', 'max')
  redis.pcall('del', readers)
  redis.pcall('zremrangebyscore', admitted, 0, millis())
  redis.pcall('zincrby', admitted, -1, 'round')
  redis.pcall('pexpire', admitted, ms)
end
