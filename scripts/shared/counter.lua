-- counter: how a node of a RedLock counts its votes.
--
-- counter  of the lock: at least the number of votes that it has counted. It expires within an hour,
--          and begins again at the highest
-- highest  not below any counter of the node, of all locks. It is at least the end of the BLOCK that
--          a counter is in, so that not every vote has to write it. A node without it may have lost
--          its data, and begins at its clock in µs: no counter gets so far, unless it counts a
--          million votes in a second
--
-- Defines  raise(counter, highest, n), count(counter, highest, floor),
--          draw(counter, highest, floor, n)
-- include grant
-- include time

local HOUR = '3600000'

-- raise sets the counter to n, and the highest of all to the end of its block, unless that is
-- higher.
local function raise(counter, highest, n)
  redis.call('set', counter, string.format('%.0f', n), 'px', HOUR)
  local last, known = n + BLOCK - n % BLOCK, redis.call('get', highest)
  if not known or tonumber(known) < last then
    redis.call('set', highest, string.format('%.0f', known and last or math.max(last, micros())))
  end
end

-- count returns the value of the counter. A restarted server may have an old value, so the result is never below the
-- floor, which the server got when it was admitted again: see quorum/admit.
local function count(counter, highest, floor)
  local known = redis.call('mget', counter, highest)
  return math.max(tonumber(known[1] or known[2] or micros()), floor)
end

-- draw counts one vote more, and returns the new value of the counter. If the caller has incremented the counter, n is
-- that value.
local function draw(counter, highest, floor, n)
  n = n or redis.call('incr', counter)
  local new = n == 1
  if new then
    redis.call('del', counter) -- a script that fails half-way must not leave it so low
    n = tonumber(redis.call('get', highest) or micros()) + 1
  end
  if new or n <= floor or n % BLOCK == 0 then
    n = math.max(n, floor + 1)
    raise(counter, highest, n)
  end
  return n
end
