-- red: what the scripts of a RedLock's nodes share. KEYS[1] is the record of the
-- hold. It says itself until when it is valid: a key that Redis deletes because
-- its clock has jumped ahead would not come back when the clock does. Its TTL is
-- for tidiness only, after a holder has crashed, and so long that a clock that is
-- some hours or days ahead for a while does no harm.
local record = KEYS[1]
local time = redis.call('time')
local now = time[1] * 1000000 + time[2]

-- With a quarantine the last key says whether this server may vote. The last
-- arguments are the times, in µs of this server, between which the request may
-- run: its clock has jumped if it is outside, or this is a late copy. The replies
-- are {-3, now, epoch} and {-4, now}.
local floor = 0
if KEYS[#KEYS] == ADMITTED then
  local epoch, admitted = standing(now)
  if not admitted then
    return {-3, now, epoch}
  end
  if now < tonumber(ARGV[#ARGV - 1]) or now > tonumber(ARGV[#ARGV]) then
    return {-4, now}
  end
  floor = tonumber(redis.call('hget', ADMITTED, 'floor'))
end

-- current is the attempt that holds the lock on this node, or nil.
local function current()
  local until_ = tonumber(redis.call('hget', record, 'until') or 0)
  if until_ > now then
    return redis.call('hget', record, 'attempt')
  end
end

-- left is for how many ms it does.
local function left()
  return math.ceil((tonumber(redis.call('hget', record, 'until') or 0) - now) / 1000)
end

local MONTH = 30 * 24 * 3600 * 1000

-- lengthen makes the record valid for a lease from now, unless it is already. That
-- is written last: a script that fails half-way has not voted.
local function lengthen(lease)
  if redis.call('pttl', record) < lease + MONTH then
    redis.call('pexpire', record, lease + MONTH)
  end
  local until_ = tonumber(redis.call('hget', record, 'until') or 0)
  if until_ < now + lease * 1000 then
    redis.call('hset', record, 'until', now + lease * 1000)
  end
end

-- raise makes the counter of the lock, KEYS[2], and the highest of all locks,
-- KEYS[3], at least n. A counter that was dropped begins again at the highest.
local function raise(n)
  redis.call('set', KEYS[2], n, 'px', MONTH)
  if tonumber(redis.call('get', KEYS[3]) or 0) < n then
    redis.call('set', KEYS[3], n)
  end
end

-- counter is its value. What a restarted server remembers of it may be old, so
-- it is not below what the others knew when the server was admitted again.
local function counter()
  return math.max(tonumber(redis.call('get', KEYS[2]) or redis.call('get', KEYS[3]) or 0), floor)
end

-- grant gives the node's vote to an attempt and returns the stamp: what the counter
-- has become, and the time. No other grant has the same, also if the node loses its
-- data and the counter comes to the same value again.
local function grant(attempt, lease)
  local count = counter() + 1
  raise(count)
  local stamp = string.format('%.0f:%.0f', count, now)
  redis.call('del', record)
  redis.call('hset', record, 'attempt', attempt, 'stamp', stamp)
  lengthen(lease)
  return stamp
end

-- counted is the counter's value by the grant with that stamp.
local function counted(stamp)
  return tonumber(string.match(stamp, '^%d+'))
end

-- age is for how many µs that vote has stood.
local function age(stamp)
  return now - tonumber(string.match(stamp, '%d+$'))
end
