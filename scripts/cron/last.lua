-- cron/last: the latest tick of a CronJob that was claimed.
--
-- KEYS[1]  ticks: see cron/enter
-- KEYS[2]  runs: see cron/enter
-- Reply    {1, tick, run}  as in shared/cronrun; in state c or r, cron/peek shows whether the
--                          run is in progress
--          {0, 0}          no tick is known
-- Caller   Last
-- Twice    Reads only.

local last = redis.call('zrange', KEYS[1], -1, -1)[1]
local run = last and redis.call('hget', KEYS[2], last)
if not run then
  return {0, 0}
end
return {1, tonumber(last), run}
