-- fairpermits/set: set how many permits a PermitSemaphore WithFairness has, unless it was done
-- before.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of this request
-- KEYS[7]  the number of a PermitSemaphore without fairness, or another lock
-- ARGV[1]  permits
-- ARGV[2]  time to keep the record, ms
-- Reply    1  set
--          0  they were set before
-- Caller   TrySetPermits
-- Twice    The record tells a copy that the first run has set them.
-- Replica  "Set before" must come from a master.

-- include permitqueue
local record, other = KEYS[6], KEYS[7]
if redis.call('exists', other) == 1 then
  return redis.error_reply('FOREIGN another type of this name is in use')
elseif redis.call('hexists', state, 'total') == 1 then
  redis.call('zrem', ends, '')
  return redis.call('exists', record)
end
redis.call('hset', state, 'total', ARGV[1], 'free', ARGV[1])
redis.call('set', record, 1, 'px', ARGV[2])
return 1
