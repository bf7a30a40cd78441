-- token: fencing tokens, each higher than all before it. They come from the fencing clock
-- of the slot, which all its locks share, so that no key remains for each name.
--
-- Defines  nextToken(clock, now), drawToken(clock, now)

-- nextToken returns the token that comes next: the time in µs, or more if the clock has
-- given that already.
local function nextToken(clock, now)
  return math.max(tonumber(redis.call('get', clock) or 0) + 1, now)
end

-- drawToken moves the clock to its next token. SET gets the number itself:
-- tostring() would round it.
local function drawToken(clock, now)
  local token = nextToken(clock, now)
  redis.call('set', clock, token)
  return token
end
