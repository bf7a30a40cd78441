-- red_admit: let a server process vote.
--
-- KEYS[1]  highest counter of all locks
-- KEYS[2]  the process that may vote
-- ARGV[1]  epoch that is meant
-- ARGV[2]  floor: at least this is the highest counter from now on
-- ARGV[3]  longest lease, ms, that the caller has heard of
-- Reply    1  it may vote
--          0  the epoch is another one
-- Caller   a RedLock with a quarantine, when that is over, and Bootstrap
-- Twice    The counter only grows; an epoch is admitted once.

-- include red_standing
local time = redis.call('time')
local epoch, admitted = standing(time[1] * 1000000 + time[2])
if admitted then
  return 1
end
if epoch ~= ARGV[1] then
  return 0
end
if tonumber(redis.call('get', KEYS[1]) or 0) < tonumber(ARGV[2]) then
  redis.call('set', KEYS[1], ARGV[2])
end
if tonumber(redis.call('hget', KEYS[2], 'longest') or 0) < tonumber(ARGV[3]) then
  redis.call('hset', KEYS[2], 'longest', ARGV[3])
end
redis.call('hset', KEYS[2], 'run_id', string.match(epoch, '%x+'), 'floor', ARGV[2])
redis.call('del', UNFIT_SINCE)
return 1
