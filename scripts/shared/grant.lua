-- grant: how a node of a RedLock gives its vote.
--
-- Numbers are written by '%.0f': Redis itself would write them by '%.17g', which is slow, and
-- '%d' is of 32 bits where the server is.
--
-- Defines  BLOCK, KEEP, isNext(n), grant(record, n, now, id, lease). now is in µs, lease in ms

-- BLOCK is how many votes for a lock a node counts before it writes the highest of all
-- counters again, and KEEP when Redis deletes the record of a vote: in 31 days, which is 30
-- longer than the longest lease.
local BLOCK, KEEP = 64, '2678400000'

-- isNext reports whether a counter that was incremented to n has nothing else to be done.
local function isNext(n)
  return n > 1 and n % BLOCK ~= 0
end

-- grant gives the node's vote to a hold, whose record does not exist, and returns the stamp:
-- the count and the time. No other grant has the same stamp, even if the node loses its data
-- and the counter comes to the same value again.
local function grant(record, n, now, id, lease)
  local stamp = string.format('%.0f:%.0f', n, now)
  redis.call('hset', record, 'attempt', id, 'stamp', stamp, 'until', string.format('%.0f', now + lease * 1000))
  local set = redis.pcall('pexpire', record, KEEP)
  if type(set) == 'table' then -- a script that fails half-way must not have voted
    redis.call('del', record)
    error(set.err)
  end
  return stamp
end
