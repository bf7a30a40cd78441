-- permits/try_set: set how many permits a PermitSemaphore has, unless it was done before.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of the page
-- KEYS[4]  how many permits a Semaphore of this name has
-- KEYS[5]  see shared/setting.lua
-- ARGV[3]  number of the operation
-- ARGV[4]  permits
-- Reply    1  set
--          0  they were set before
-- Caller   TrySetPermits
-- Twice    A second run finds the record of the first, and replies the same.

-- include permits
-- include record
-- include count
-- include others
-- include setting
local record, ofSemaphore, latest, number, n = KEYS[3], KEYS[4], KEYS[5], ARGV[3], tonumber(ARGV[4])
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or 0
end
local left, foreign = count(free)
if left then
  foreign = others('Semaphore', ofSemaphore)
end
if foreign then
  return foreign
elseif left then
  note(record, number, 'unset')
  return 0
end
note(record, number, 'set')
local reply = done(record, redis.pcall('set', free, ARGV[4]))
if reply.err then
  return reply
end
setting(latest, record, number)
redis.call('del', ofSemaphore) -- of one that was deleted
tell(n)
return told(1)
