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
-- Numbers are written by '%d': Redis itself would write them by '%.17g', which is slow.
--
-- Defines  MONTH, voted(record, now), left(vote, now), ending(now, lease), raise(counter, highest, known, n),
--          count(known, floor), grant(record, vote, counter, highest, known, floor, now, id, lease), counted(stamp),
--          age(stamp, now). now is in µs, lease in ms; vote is what voted returned, and
--          known is the reply of MGET to counter and highest

local MONTH = 30 * 24 * 3600 * 1000

-- voted reads the record: {hold id, until, stamp, token}. It also returns the id of the hold
-- that has the node's vote at that time, or false.
local function voted(record, now)
  local vote = redis.call('hmget', record, 'attempt', 'until', 'stamp', 'token')
  vote[2] = tonumber(vote[2] or 0)
  return vote, vote[2] > now and vote[1]
end

-- left returns for how many ms that hold has it.
local function left(vote, now)
  return math.ceil((vote[2] - now) / 1000)
end

-- ending returns the end of a lease, as the record has it.
local function ending(now, lease)
  return string.format('%d', now + lease * 1000)
end

-- raise sets the counter to n, and the highest of all to at least n. A counter that has
-- expired begins again at the highest.
local function raise(counter, highest, known, n)
  local text = string.format('%d', n)
  redis.call('set', counter, text, 'px', '2592000000') -- MONTH
  if tonumber(known[2] or 0) < n then
    redis.call('set', highest, text)
  end
end

-- count returns the value of the counter. A restarted server may remember an old value, so
-- the result is never below the floor: what the others knew when it was admitted again.
local function count(known, floor)
  return math.max(tonumber(known[1] or known[2] or 0), floor)
end

-- grant gives the node's vote to a hold and returns the count, which is the new value of the
-- counter, and the stamp: that and the time. No other grant has the same stamp, even if the
-- node loses its data and the counter comes to the same value again.
local function grant(record, vote, counter, highest, known, floor, now, id, lease)
  local n = count(known, floor) + 1
  raise(counter, highest, known, n)
  local stamp = string.format('%d:%d', n, now)
  if vote[1] or vote[4] then
    redis.call('del', record)
  end
  redis.call('hset', record, 'attempt', id, 'stamp', stamp, 'until', ending(now, lease))
  local set = redis.pcall('pexpire', record, string.format('%d', lease + MONTH))
  if type(set) == 'table' then -- a script that fails half-way must not have voted
    redis.call('del', record)
    error(set.err)
  end
  return n, stamp
end

-- counted returns the value that the counter got by the grant with that stamp.
local function counted(stamp)
  return tonumber(string.match(stamp, '^%d+'))
end

-- age returns for how many µs that vote has lasted.
local function age(stamp, now)
  return now - tonumber(string.match(stamp, '%d+$'))
end
