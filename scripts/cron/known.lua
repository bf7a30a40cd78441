-- cron/known: which ticks of a CronJob were claimed.
--
-- KEYS[1]  ticks: see cron/enter
-- KEYS[2]  runs: see cron/enter
-- ARGV[1]  first time, ms since 1970
-- ARGV[2]  last time, ms since 1970
-- Reply    {1, since, tick, ...}  the claimed ticks; ticks up to since are not known
--          {0, 0}                 no tick is known
-- Caller   Missed
-- Twice    Reads only.

local oldest = redis.call('zrange', KEYS[1], 0, 0)[1]
if not oldest then
  return {0, 0}
end
local reply = {1, tonumber(redis.call('hget', KEYS[2], 'floor') or oldest)}
for i, tick in ipairs(redis.call('zrangebyscore', KEYS[1], ARGV[1], ARGV[2])) do
  reply[i + 2] = tick
end
return reply
