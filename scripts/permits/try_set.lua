-- permits/try_set: set how many permits a PermitSemaphore has, unless it was done before.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of the page
-- KEYS[4]  mark: see shared/others.lua
-- KEYS[5]  see shared/setting.lua
-- ARGV[3]  number of the operation
-- ARGV[4]  permits
-- Reply    1  set
--          0  they were set before
-- Caller   TrySetPermits
-- Twice    A second run finds the record of the first, and replies the same.

-- include permits
-- include record
-- include mark
-- include setting
local record, latest, number, n = KEYS[3], KEYS[5], ARGV[3], tonumber(ARGV[4])
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or 0
end
local left, foreign, mark = marked(free, KEYS[4])
foreign = foreign or others('PermitSemaphore', left and mark)
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
redis.call('set', KEYS[4], 'PermitSemaphore')
tell(n)
return told(1)
