-- quorum/admit: let a server process vote.
--
-- KEYS[1]  highest counter of all locks
-- KEYS[2]  hash: which process may vote; see shared/admission.lua
-- KEYS[3]  since when another process may not vote
-- ARGV[1]  epoch to admit
-- ARGV[2]  floor: the highest counter is at least this from now on
-- ARGV[3]  longest lease that the caller knows, ms
-- Reply    1  the process may vote
--          0  it is in another epoch
-- Caller   a RedLock with a quarantine, when that is over, and BootstrapNodes
-- Twice    The counter only grows; an epoch is admitted once.

-- include time
-- include admission
local highest, process = KEYS[1], KEYS[2]
local meant, floor, longest = ARGV[1], ARGV[2], ARGV[3]
local epoch, admitted = admission(micros())
if admitted then
  return 1
end
if epoch ~= meant then
  return 0
end
if tonumber(redis.call('get', highest) or 0) < tonumber(floor) then
  redis.call('set', highest, floor)
end
if tonumber(redis.call('hget', process, 'longest') or 0) < tonumber(longest) then
  redis.call('hset', process, 'longest', longest)
end
redis.call('hset', process, 'run_id', string.match(epoch, '%x+'), 'floor', floor)
redis.call('del', UNFIT_SINCE)
return 1
