-- life: which waiters are alive. A waiter gives a sign of life with each poll, at least
-- each third of its waiter lease. alive is a zset: hold id -> ms until which the waiter
-- counts as alive. notes is a hash that exists as long as there is a sign: term -> the
-- waiter lease of the latest sign; pardoned and until, ms.
--
-- If no waiter gave a sign for most of a waiter lease, and the last sign is recent, Redis itself may have been
-- unreachable. Then the first waiter that comes back must not remove the others. So all are pardoned for one more waiter
-- lease, once. Another pardon needs a new sign of life: otherwise short visits would keep dead waiters in the queue.
--
-- Defines  listen(alive, notes, now, term), pardonEnds, lives(sign),
--          silenced(alive, now, some). now is in ms. Call listen before lives and silenced,
--          and before sign: a new sign must not keep the others from being pardoned
-- include signs

local LONGEST_OUTAGE = 60 * 1000 -- twice the outage after which Lock gives up by default
local pardoned, pardonEnds = 0, 0 -- signs up to pardoned are valid until pardonEnds

-- listen reports whether there are signs of life, whether some of them have expired,
-- and whether it has pardoned those. term is the waiter lease of the caller.
local function listen(alive, notes, now, term)
  local oldest = redis.call('zrange', alive, 0, 1, 'withscores')
  signs = #oldest / 2
  if signs == 0 then
    return false, false, false
  elseif tonumber(oldest[2]) > now then
    return true, false, false
  end
  local noted = redis.call('hmget', notes, 'term', 'pardoned', 'until')
  local lease = tonumber(noted[1] or term)
  pardoned = tonumber(noted[2] or 0)
  pardonEnds = tonumber(noted[3] or 0)
  local newest = tonumber(redis.call('zrevrange', alive, 0, 0, 'withscores')[2])
  if newest >= now + lease / 3 or newest <= now - LONGEST_OUTAGE or newest <= pardoned then
    return true, true, false
  end
  pardoned = math.max(now, newest)
  pardonEnds = now + lease
  redis.call('hset', notes, 'pardoned', pardoned, 'until', pardonEnds)
  return true, true, true
end

-- lives returns until when a waiter with this sign of life counts as alive.
local function lives(sign)
  sign = tonumber(sign)
  return sign <= pardoned and math.max(sign, pardonEnds) or sign
end

-- silenced returns at most some waiters whose signs of life have expired.
local function silenced(alive, now, some)
  local from = pardonEnds > now and string.format('(%.0f', pardoned) or '-inf'
  return redis.call('zrangebyscore', alive, from, now, 'limit', 0, some)
end
