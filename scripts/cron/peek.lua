-- cron/peek: the run of a tick of a CronJob.
--
-- KEYS[1]  runs: see cron/enter
-- KEYS[2]  lock of the tick
-- ARGV[1]  tick
-- Reply    {1, tick, run}  as in shared/cronrun; state l if the run was lost
--          {0, 0}          the run is not known
-- Caller   Peek, Last
-- Twice    Reads only.

-- include cronrun
local run = readRun(redis.call('hget', KEYS[1], ARGV[1]))
if not run then
  return {0, 0}
end
if goesOn(run) and redis.call('exists', KEYS[2]) == 0 then
  lost(run)
end
return {1, tonumber(ARGV[1]), runText(run)}
