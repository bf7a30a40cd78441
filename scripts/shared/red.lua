-- red: what the scripts of a RedLock's nodes share. KEYS[1] is the record of the
-- hold. It says itself until when it is valid: a key that Redis deletes because
-- its clock has jumped ahead would not come back when the clock does. Its TTL is
-- for tidiness only.
local record = KEYS[1]
local time = redis.call('time')
local now = time[1] * 1000000 + time[2]

-- current is the attempt that holds the lock on this node, or nil.
local function current()
  local until_ = tonumber(redis.call('hget', record, 'until') or 0)
  if until_ > now then
    return redis.call('hget', record, 'attempt')
  end
end

-- left is for how many ms it does.
local function left()
  return math.ceil((tonumber(redis.call('hget', record, 'until')) - now) / 1000)
end

local HOUR, MONTH = 3600 * 1000, 30 * 24 * 3600 * 1000

-- lengthen makes the record valid for a lease from now, unless it is already.
local function lengthen(lease)
  local until_ = tonumber(redis.call('hget', record, 'until') or 0)
  if until_ < now + lease * 1000 then
    redis.call('hset', record, 'until', now + lease * 1000)
  end
  if redis.call('pttl', record) < lease + HOUR then
    redis.call('pexpire', record, lease + HOUR)
  end
end

-- raise makes the counter of the lock, KEYS[2], and the highest of the slot,
-- KEYS[3], at least n. A counter that was dropped begins again at the highest.
local function raise(n)
  redis.call('set', KEYS[2], n, 'px', MONTH)
  if tonumber(redis.call('get', KEYS[3]) or 0) < n then
    redis.call('set', KEYS[3], n)
  end
end

local function counter()
  return tonumber(redis.call('get', KEYS[2]) or redis.call('get', KEYS[3]) or 0)
end

-- grant gives the node's vote to an attempt and returns the stamp.
local function grant(attempt, lease)
  local stamp = counter() + 1
  raise(stamp)
  redis.call('del', record)
  redis.call('hset', record, 'attempt', attempt, 'stamp', stamp)
  lengthen(lease)
  return stamp
end
