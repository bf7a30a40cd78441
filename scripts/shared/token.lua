-- token: fencing tokens, each higher than all that came before. They are drawn from the
-- fencing clock of a slot, which all of its locks share, so that nothing is left behind
-- for a name.
-- Defines  nextToken(clock, now), drawToken(clock, now)

-- nextToken is what the clock would give: the time in µs, or more if it has given that
-- already.
local function nextToken(clock, now)
  return math.max(tonumber(redis.call('get', clock) or 0) + 1, now)
end

-- drawToken moves the clock on to its next token. The number goes to SET as it is:
-- tostring() would round it.
local function drawToken(clock, now)
  local token = nextToken(clock, now)
  redis.call('set', clock, token)
  return token
end
