-- fair: the line of a fair lock. The queue and the deadlines are Redisson's, and
-- kept by its rules; alive is ours.
--
-- KEYS[1]  lock hash
-- KEYS[2]  queue: list of stay ids; the head is next
-- KEYS[3]  deadlines: zset, stay id -> epoch ms from which Redisson may remove
--          the waiter if it is the head. Each deadline contains the waiting time
--          of all who stand before it, so who leaves takes back its own.
-- KEYS[4]  alive: zset, stay id -> epoch ms until which the waiter counts as
--          alive. Redisson's waiters are not in it. A score that ends in .5 was
--          given by another on suspicion; see sweep.
-- ARGV[1]  waiter lease, ms: the waiting time of our waiters, and for how long a
--          sign of life is good
-- ARGV[2]  'publish', 'spublish', 'both' or 'none'
-- ARGV[3]  what a waiter's channel begins with; its id follows
local lock, queue, deadlines, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local term = tonumber(ARGV[1])
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local first = redis.call('lindex', queue, 0)

local longestOutage = 60 * 1000
-- For how long Redisson's waiters wait unless told otherwise. Each takes its time
-- from the deadlines of all behind it when it leaves.
local theirTerm = 5 * 60 * 1000
-- A wait without end can have a deadline that no TTL or reply can hold.
local year = 365 * 24 * 60 * 60 * 1000

-- silence is for how long nothing was heard of a waiter with this sign of life.
local function silence(sign)
  return math.max(now - (math.floor(sign) - term), 0)
end

-- outlast keeps the signs of life until no deadline is left that they could
-- shorten. Without them the dead are removed by their deadlines.
local function outlast()
  local last = redis.call('zrevrange', deadlines, 0, 0, 'withscores')[2] or now
  local ttl = math.min(math.ceil(math.max(last - now, 0)), year) + term
  if redis.call('pttl', alive) < ttl then
    redis.call('pexpire', alive, ttl)
  end
end

-- leave takes waiters out of the line, and their time from those behind them.
local function leave(stays)
  local gone, ahead = {}, 0
  for _, stay in ipairs(stays) do
    gone[stay] = true
    redis.call('zrem', deadlines, stay)
    redis.call('zrem', alive, stay)
  end
  for _, stay in ipairs(redis.call('lrange', queue, 0, -1)) do
    if gone[stay] then
      redis.call('lrem', queue, 1, stay)
      ahead = ahead + 1
    elseif ahead > 0 then
      redis.call('zadd', deadlines, 'xx', 'incr', -ahead * term, stay)
    end
  end
end

-- sweep removes the dead, except me: who calls is alive.
local function sweep(me)
  local silent = redis.call('zrangebyscore', alive, '-inf', now, 'withscores')
  if #silent > 0 then
    -- If all fell silent at once, not long ago, it was rather Redis that could
    -- not be reached: the first to come back must not cost the others their
    -- places. That is believed once. Who is really dead gives no sign of life
    -- until the next time.
    local outage = #silent == 2 * redis.call('zcard', alive) and tonumber(silent[#silent]) > now - longestOutage
    local dead, believed = {}, false
    for i = 1, #silent, 2 do
      local stay, sign = silent[i], tonumber(silent[i + 1])
      if outage and sign == math.floor(sign) then
        redis.call('zadd', deadlines, 'xx', 'incr', silence(sign), stay)
        redis.call('zadd', alive, now + term + 0.5, stay)
        believed = true
      elseif stay ~= me then
        table.insert(dead, stay)
      end
    end
    if #dead > 0 then
      leave(dead)
    end
    if believed then
      outlast()
    end
  end
  -- Redisson's rule, for its waiters.
  local head = redis.call('lindex', queue, 0)
  while head and head ~= me and not redis.call('zscore', alive, head) do
    local deadline = redis.call('zscore', deadlines, head)
    if not deadline then
      -- Somebody has removed the deadlines. A head without one would stand there
      -- for ever.
      redis.call('zadd', deadlines, now + term, head)
      return
    end
    if deadline - now > 0 then
      return
    end
    redis.call('zrem', deadlines, head)
    redis.call('lpop', queue)
    head = redis.call('lindex', queue, 0)
  end
end

-- tell wakes the head, unless that is me: if the lock is free, or if it is a new
-- head that would learn of the end of the lease too late, as it looks each third
-- of a waiter lease by itself. Until then a head of ours is safe from Redisson's
-- purge, whatever was taken from its deadline.
local function tell(me)
  local head = redis.call('lindex', queue, 0)
  if not head or head == me then
    return
  end
  if redis.call('zscore', alive, head) and (redis.call('zscore', deadlines, head) or now) - now < term then
    redis.call('zadd', deadlines, now + term, head)
  end
  local ttl = redis.call('pttl', lock)
  if ttl == -2 or head ~= first and ttl >= 0 and ttl < term / 3 then
    announce(ARGV[2], ARGV[3] .. head, '0')
  end
end
