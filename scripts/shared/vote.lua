-- vote: the vote of a node of a RedLock. The record of a hold has a field that says until
-- when it is valid. A TTL would not do: a key that Redis deletes because its clock has
-- jumped ahead does not come back when the clock is set right. The TTL of the record only
-- cleans up after a crashed holder. It is so long that a clock that is hours or days ahead
-- for a while does no harm.
--
-- record   hash: attempt -> hold id, stamp -> stamp of the vote, until -> server µs, token
-- counter  of the lock: how many votes it has seen, or more
-- highest  the highest counter of all locks of the node
--
-- Defines  current(record, now), left(record, now), valid(record, now, lease),
--          count(counter, highest, floor), raise(counter, highest, n),
--          grant(record, counter, highest, floor, now, id, lease),
--          counted(stamp), age(stamp, now). now is in µs, lease in ms
-- include ttl

-- current returns the id of the hold that has the node's vote, or nil.
local function current(record, now)
  local until_ = tonumber(redis.call('hget', record, 'until') or 0)
  if until_ > now then
    return redis.call('hget', record, 'attempt')
  end
end

-- left returns for how many ms that hold has it.
local function left(record, now)
  return math.ceil((tonumber(redis.call('hget', record, 'until') or 0) - now) / 1000)
end

local MONTH = 30 * 24 * 3600 * 1000

-- valid makes the record valid for at least a lease from now. The field is written last: a
-- script that fails half-way has not voted.
local function valid(record, now, lease)
  lengthen(record, lease + MONTH)
  local until_ = tonumber(redis.call('hget', record, 'until') or 0)
  if until_ < now + lease * 1000 then
    redis.call('hset', record, 'until', now + lease * 1000)
  end
end

-- raise sets the counter to n, and the highest of all to at least n. A counter that has
-- expired begins again at the highest.
local function raise(counter, highest, n)
  redis.call('set', counter, n, 'px', MONTH)
  if tonumber(redis.call('get', highest) or 0) < n then
    redis.call('set', highest, n)
  end
end

-- count returns the value of the counter. A restarted server may remember an old value, so
-- the result is never below the floor: what the others knew when it was admitted again.
local function count(counter, highest, floor)
  return math.max(tonumber(redis.call('get', counter) or redis.call('get', highest) or 0), floor)
end

-- grant gives the node's vote to a hold and returns the stamp: the new value of the counter,
-- and the time. No other grant has the same stamp, even if the node loses its data and the
-- counter comes to the same value again.
local function grant(record, counter, highest, floor, now, id, lease)
  local n = count(counter, highest, floor) + 1
  raise(counter, highest, n)
  local stamp = string.format('%.0f:%.0f', n, now)
  redis.call('del', record)
  redis.call('hset', record, 'attempt', id, 'stamp', stamp)
  valid(record, now, lease)
  return stamp
end

-- counted returns the value that the counter got by the grant with that stamp.
local function counted(stamp)
  return tonumber(string.match(stamp, '^%d+'))
end

-- age returns for how many µs that vote has lasted.
local function age(stamp, now)
  return now - tonumber(string.match(stamp, '%d+$'))
end
