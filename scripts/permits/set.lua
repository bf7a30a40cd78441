-- permits/set: set how many permits a PermitSemaphore has, unless it was done before.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of this request
-- KEYS[4]  how many permits a Semaphore of this name has
-- ARGV[3]  permits
-- ARGV[4]  time to keep the record, ms
-- Reply    1  set
--          0  they were set before
-- Caller   TrySetPermits
-- Twice    The record tells a copy that the first run has set them.
-- Replica  "Set before" must come from a master.

-- include permits
-- include count
-- include others
local record = KEYS[3]
local n, keep = tonumber(ARGV[3]), ARGV[4]
local left, foreign = count(free)
if left then
  foreign = others('Semaphore', KEYS[4])
end
if foreign then
  return foreign
elseif not left then
  redis.call('set', free, n)
  redis.call('set', record, 1, 'px', keep)
  redis.call('del', KEYS[4]) -- of a Semaphore that was deleted
  tell(n)
  return told(1)
end
redis.call('zrem', held, '')
return redis.call('exists', record)
