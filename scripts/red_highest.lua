-- red_highest: what a node can tell about itself, and what others need to know
-- before they may vote.
--
-- KEYS[1]  highest counter of all locks
-- KEYS[2]  the process that may vote
-- Reply    {admitted, highest, now, epoch, policy}: 1 if it may vote; server µs;
--          maxmemory-policy
-- Caller   a RedLock with a quarantine
-- Twice    It notes once that an epoch has begun.

-- include red_standing
local time = redis.call('time')
local now = time[1] * 1000000 + time[2]
local policy = string.match(redis.call('info', 'memory'), 'maxmemory_policy:(%S+)')
local epoch, admitted = standing(now)
return {admitted and 1 or 0, tonumber(redis.call('get', KEYS[1]) or 0), now, epoch, policy}
