-- token: fencing tokens, each higher than all before it. They come from the fencing clock
-- of all locks, in a cluster from the slot's clock, so that no key remains for each name.
-- Where slots have clocks, the single clock is a hash, from which no script can draw: see clock/split.
--
-- Defines  nextToken(clock, now), drawToken(clock, now, digits). digits is now as text,
--          if the caller has it. drawToken returns the token, and the last before it, if
--          it is known

-- nextToken returns the token that comes next: the time in µs, or more if the clock has
-- given that already.
local function nextToken(clock, now)
  return math.max(tonumber(redis.call('get', clock) or 0) + 1, now)
end

-- drawToken moves the clock to its next token, with one command unless the time stands
-- still or has gone back: then the second SET undoes what the first has lowered, and
-- no other script runs in between. SET gets digits where they are at hand: formatting the
-- number takes Redis about as long as the SET. It gets the number itself otherwise:
-- tostring() would round it.
local function drawToken(clock, now, digits)
  local last = tonumber(redis.call('set', clock, digits or now, 'get'))
  if last and last >= now then
    now = last + 1
    redis.call('set', clock, now)
  end
  return now, last
end
