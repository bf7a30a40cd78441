-- cron/renew: lengthen the lease of a run, and note that, and that its function has begun.
--
-- KEYS[1]  lock of the tick
-- KEYS[2]  runs: see cron/enter
-- KEYS[3]  ticks: see cron/enter
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only check
-- ARGV[3]  tick
-- ARGV[4]  how long after the end of the lease the run is needed, ms: see cron/enter
-- ARGV[5]  1: the function has begun, and the claim is never taken back; 0: it has not
-- Reply    as lock/renew
-- Caller   the watchdog, Extend
-- Twice    As lock/renew. A run that has ended has no lock, so the script records nothing.
-- Memory   The HDEL, of a field that cannot exist, lets the HSET pass on a server at its memory
--          limit: calls for the tick wait for this record.
-- Replica  "Not there" must come from a master: see lock/release.

-- include renewal
-- include time
-- include cronrun
local lock, runs, ticks = KEYS[1], KEYS[2], KEYS[3]
local id, lease, tick, needed, begun = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local kept = renewed(lock, id, lease)
local run = kept == 1 and readRun(redis.call('hget', runs, tick))
if run and run.id == id and goesOn(run) then
  local stop = math.floor(micros() / 1000) + lease
  run.state = begun and 'r' or run.state
  run.stop = string.format('%.0f', math.max(stop, run.stop))
  redis.call('hdel', runs, '')
  redis.call('hset', runs, tick, runText(run))
  lengthen(runs, lease + needed)
  lengthen(ticks, lease + needed)
end
return kept
