-- quorum/highest: the state of a node, for its own admission and for the admission of others.
--
-- KEYS[1]  highest counter of all locks
-- KEYS[2]  hash: which process may vote; see shared/admission.lua
-- KEYS[3]  since when another process may not vote
-- ARGV[1]  longest lease that the caller knows, ms
-- Reply    {admitted, highest, now, longest, epoch, policy}
--          admitted  0: it may not vote; 1: it may; 2: it may, and has not voted since
--                    it was admitted
--          highest   highest counter of all locks
--          now       server µs
--          longest   longest lease that any caller has reported, ms
--          epoch     see shared/admission.lua
--          policy    maxmemory-policy
-- Caller   a RedLock with a quarantine
-- Twice    The begin of an epoch is noted once; the longest lease only grows.
-- Memory   The HDEL lets the rest pass on a node at its memory limit, so that holds can
--          still be renewed.

-- include time
-- include admission
local counter, process, longest = KEYS[1], KEYS[2], tonumber(ARGV[1])
redis.call('hdel', process, '')
local policy = string.match(redis.call('info', 'memory'), 'maxmemory_policy:(%S+)') or '?'
if policy ~= 'noeviction' then
  redis.call('hdel', process, 'run_id') -- keys that it may evict count as lost
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
