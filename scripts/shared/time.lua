-- time: the server's clock.
--
-- Defines  micros()  µs since 1970

local function micros()
  local time = redis.call('time')
  return time[1] * 1000000 + time[2]
end
