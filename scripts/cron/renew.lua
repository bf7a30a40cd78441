-- cron/renew: lengthen the lease of a run, and note that its function has begun.
--
-- KEYS[1]  lock of the tick
-- KEYS[2]  runs: see cron/enter
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only look
-- ARGV[3]  tick
-- ARGV[4]  1: the function has begun, and the claim is never taken back; 0: it has not
-- Reply    as lock/renew
-- Caller   the watchdog, Extend
-- Twice    As lock/renew. A run that has ended has no lock, so nothing is noted of it.
-- Memory   The HDEL, of a field that cannot exist, lets the HSET pass on a server at its memory
--          limit: who asks for the tick waits for the note.
-- Replica  "Not there" must come from a master: see lock/release.

-- include renewal
-- include cronrun
local lock, runs = KEYS[1], KEYS[2]
local id, lease, tick, begun = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local kept = renewed(lock, id, lease)
if kept == 1 and begun then
  local run = readRun(redis.call('hget', runs, tick))
  if run and run.id == id and run.state == 'c' then
    run.state = 'r'
    redis.call('hdel', runs, '')
    redis.call('hset', runs, tick, runText(run))
  end
end
return kept
