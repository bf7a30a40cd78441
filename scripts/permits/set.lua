-- permits/set: set the number of permits, free and held ones together.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of the page
-- KEYS[4]  mark: see shared/others.lua
-- KEYS[5]  see shared/setting.lua
-- ARGV[3]  number of the operation
-- ARGV[4]  permits
-- Reply    1; 0 if this was given up: a late copy, nothing done
-- Caller   SetPermits
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
end
local now = n - redis.call('zcard', held)
note(record, number, 'set')
local reply = done(record, redis.pcall('set', free, string.format('%.0f', now)))
if reply.err then
  return reply
end
setting(latest, record, number)
if not left or not mark then
  redis.call('set', KEYS[4], 'PermitSemaphore')
end
tell(now - (left or 0))
return told(1)
