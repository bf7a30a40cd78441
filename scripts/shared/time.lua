-- time: the server's clock.
--
-- Defines  micros()  µs since 1970, as a number and as digits

local function micros()
  local time = redis.call('time')
  local seconds, us = time[1], time[2]
  return seconds * 1000000 + us, seconds .. ('000000'):sub(#us + 1) .. us
end
