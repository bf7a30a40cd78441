-- permits/add: change how many permits a PermitSemaphore has. It is made if there is none.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of the page
-- KEYS[4]  mark: see shared/others.lua
-- KEYS[5]  see shared/setting.lua
-- ARGV[3]  number of the operation
-- ARGV[4]  how many more; may be negative
-- Reply    1; 0 if this was given up: a late copy, nothing done; or the error OVERFLOW:
--          there would be too many, held ones included, or too few
-- Caller   AddPermits
-- Twice    A second run finds the record of the first, or of its give-up.

-- include permits
-- include record
-- include mark
-- include setting
local record, latest, number, more = KEYS[3], KEYS[5], ARGV[3], tonumber(ARGV[4])
local what = recorded(record, number)
if what then
  return (what == 'gone' or what == 'late') and 0 or 1
end
local left, foreign, mark = marked(free, KEYS[4])
foreign = foreign or others('PermitSemaphore', left and mark)
if foreign then
  return foreign
end
local now = (left or 0) + more
if math.abs(now + redis.call('zcard', held)) > MOST then
  return OVERFLOW
end
local before = left and lastSetting(latest) or setting(latest, record, number)
note(record, number, string.format('%s %.0f %s', left and 'more' or 'made', more, before)) -- see undo
local reply = done(record, redis.pcall('set', free, string.format('%.0f', now)))
if reply.err then
  return reply
elseif not left then
  redis.call('set', KEYS[4], 'PermitSemaphore')
end
tell(more)
return told(1)
