-- cron/finish: write how a run of a CronJob has ended, and free the lock of its tick.
--
-- KEYS[1]  lock of the tick
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  runs: see cron/enter
-- ARGV[1]  hold id
-- ARGV[2]  tick
-- ARGV[3]  state: s, f, b or l, see shared/cronrun
-- ARGV[4]  text of the error
-- ARGV[5]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[6]  channel
-- ARGV[7]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  written
--          0  this hold is gone: the run was lost
--          -1 the same, and another call runs or has run
-- Caller   Do; the clean-up of a run whose lease was lost
-- Twice    The first run ends the hold. A copy finds the end that the first has written, and
--          replies the same. A run that has taken over has another hold id.
-- Memory   Redis never refuses the HDEL, and it lets the writes after it pass on a server at its
--          memory limit: the run has taken place, and the text is bounded.
-- Replica  "Gone" must come from a master: see lock/release.

-- include publish
-- include time
-- include cronrun
local lock, tombstone, runs = unpack(KEYS)
local id, tick, state, text, late, channel, how = unpack(ARGV)
local freed = redis.call('hdel', lock, id) == 1
if late ~= '0' then
  redis.call('set', tombstone, 1, 'px', late)
end
local run = readRun(redis.call('hget', runs, tick))
local mine = run and run.id == id
if mine and goesOn(run) then
  run.state, run.err = freed and state or 'l', text
  run.stop = string.format('%.0f', math.floor(micros() / 1000))
  redis.call('hset', runs, tick, runText(run))
elseif mine and not freed then
  return run.state == 'l' and 0 or 1
end
if not freed then
  if run and not mine then
    return -1
  end
  return -redis.call('exists', lock)
end
announce(how, channel, '0')
return told(1)
