-- counter: how a node of a RedLock counts its votes, and gives one.
--
-- counter  of the lock: how many votes it has seen, or more. It expires after about a month
--          without a vote, and begins again at the highest
-- highest  not below any counter of the node, of all locks. So that not every vote has to
--          write it, it is ahead of them: it is at least the end of the BLOCK that a counter
--          is in
--
-- Numbers are written by '%d': Redis itself would write them by '%.17g', which is slow.
--
-- Defines  raise(counter, highest, n), count(counter, highest, floor),
--          grant(record, counter, highest, floor, now, id, lease, keep, old). now is in µs,
--          lease and keep in ms

local BLOCK, MONTH = 64, '2592000000'

-- raise sets the counter to n, and the highest of all to the end of its block, unless that is
-- higher.
local function raise(counter, highest, n)
  redis.call('set', counter, string.format('%d', n), 'px', MONTH)
  local last = n + BLOCK - n % BLOCK
  if tonumber(redis.call('get', highest) or 0) < last then
    redis.call('set', highest, string.format('%d', last))
  end
end

-- count returns the value of the counter. A restarted server may remember an old value, so
-- the result is never below the floor: what the others knew when it was admitted again.
local function count(counter, highest, floor)
  local known = redis.call('mget', counter, highest)
  return math.max(tonumber(known[1] or known[2] or 0), floor)
end

-- grant gives the node's vote to a hold and returns the count, which is the new value of the
-- counter, and the stamp: that and the time. No other grant has the same stamp, even if the
-- node loses its data and the counter comes to the same value again. keep is when Redis
-- deletes the record, and old is whether there is one of another hold, or there may be.
local function grant(record, counter, highest, floor, now, id, lease, keep, old)
  local n = redis.call('incr', counter)
  local new = n == 1
  if new then
    redis.call('del', counter) -- a script that fails half-way must not leave it so low
    n = tonumber(redis.call('get', highest) or 0) + 1
  end
  if new or n <= floor or n % BLOCK == 0 then
    n = math.max(n, floor + 1)
    raise(counter, highest, n)
  end
  local stamp = string.format('%d:%d', n, now)
  if old then
    redis.call('del', record)
  end
  redis.call('hset', record, 'attempt', id, 'stamp', stamp, 'until', string.format('%d', now + lease * 1000))
  local set = redis.pcall('pexpire', record, keep)
  if type(set) == 'table' then -- a script that fails half-way must not have voted
    redis.call('del', record)
    error(set.err)
  end
  return n, stamp
end
