-- signs: the signs of life of waiters. life.lua describes them, and finds out which waiters are alive. A script needs only
-- this file if no sign has expired.
--
-- Defines  expired(alive, now), signs, noted(notes, term), sign(alive, notes, now, term, id),
--          unsign(alive, notes, id). now is in ms

local signs = 0 -- at least so many signs of life are known to be there

-- expired reports whether any sign of life has expired. If none has, no waiter has to be pardoned or removed. now is a
-- text.
local function expired(alive, now)
  return redis.call('zrangebyscore', alive, '-inf', now, 'limit', '0', '1')[1] ~= nil
end

-- noted notes the waiter lease of a sign. It reports whether the notes were changed, and so
-- may be new.
local function noted(notes, term)
  if tonumber(redis.call('hget', notes, 'term') or 0) == term then
    return false
  end
  redis.call('hset', notes, 'term', term)
  return true
end

-- sign records a sign of life of a waiter with this waiter lease. It reports whether alive or the notes may be new: the
-- sign may be the first, or the notes were changed.
local function sign(alive, notes, now, term, id)
  local first = redis.call('zadd', alive, string.format('%.0f', now + term), id) == 1 and signs == 0
  return noted(notes, term) or first
end

-- unsign removes the sign of life of a waiter.
local function unsign(alive, notes, id)
  redis.call('zrem', alive, id)
  signs = signs > 1 and signs - 1 or redis.call('exists', alive)
  if signs == 0 then
    redis.call('del', notes)
  end
end
