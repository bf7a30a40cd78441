-- cron/abandon: take back the claim of a tick whose function has not begun. Without the lock
-- the claim is a lost run, which others may know: it remains.
--
-- KEYS[1]  lock of the tick
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  runs: see cron/enter
-- KEYS[4]  ticks: see cron/enter
-- ARGV[1]  hold id
-- ARGV[2]  tick
-- ARGV[3]  time to keep the tombstone, ms
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the claim was this hold's; taken back
--          0  no such claim
--          -1 another runs
-- Caller   an abandoned Do
-- Twice    A second run finds the claim gone and lengthens the tombstone.
-- Memory   The HDEL lets the SET pass on a server at its memory limit: Redis
--          refuses SET only as the first write of a script.

-- include publish
-- include cronrun
local lock, tombstone, runs, ticks = unpack(KEYS)
local id, tick, keep, channel, how = unpack(ARGV)
local freed = redis.call('hdel', lock, id) == 1
redis.call('set', tombstone, 1, 'px', keep)
local run = readRun(redis.call('hget', runs, tick))
if freed and run and run.id == id and run.state == 'c' then
  if run.nth == '1' then
    redis.call('hdel', runs, tick)
    redis.call('zrem', ticks, tick)
  else
    lost(run)
    run.nth = '1' -- it is as lost as it was, and may be taken over
    redis.call('hset', runs, tick, runText(run))
  end
end
if not freed then
  return -redis.call('exists', lock)
end
announce(how, channel, '0')
return told(1)
