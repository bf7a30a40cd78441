-- quorum/highest: what a node can tell about itself, and what others need to know
-- before they may vote.
--
-- KEYS[1]  highest counter of all locks
-- KEYS[2]  the process that may vote
-- ARGV[1]  longest lease, ms, that the caller has heard of
-- Reply    {admitted, highest, now, longest, epoch, policy}: 1 if it may vote, 2 if
--          it may and never has; server µs; longest lease that any caller has heard
--          of; maxmemory-policy
-- Caller   a RedLock with a quarantine
-- Twice    It notes once that an epoch has begun; the longest lease only grows.
-- Memory   The HDEL lets the rest pass on a node at its memory limit, so that
--          holds can still be renewed.

-- include time
-- include admission
local counter, process, longest = KEYS[1], KEYS[2], tonumber(ARGV[1])
redis.call('hdel', process, '')
local policy = string.match(redis.call('info', 'memory'), 'maxmemory_policy:(%S+)') or '?'
if policy ~= 'noeviction' then
  redis.call('hdel', process, 'run_id') -- whatever it may evict counts as lost
end
local known = tonumber(redis.call('hget', process, 'longest') or 0)
if known < longest then
  redis.call('hset', process, 'longest', longest)
else
  longest = known
end
local now = micros()
local epoch, admitted = admission(now)
local highest = tonumber(redis.call('get', counter) or 0)
if admitted then
  admitted = highest > tonumber(redis.call('hget', process, 'floor')) and 1 or 2
end
return {admitted or 0, highest, now, longest, epoch, policy}
