-- permits/delete: delete a PermitSemaphore, with the permits that are held, and make waiters poll.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of the page
-- KEYS[4]  mark: see shared/others.lua
-- ARGV[3]  number of the operation
-- Reply    1  deleted
--          0  there was none
-- Caller   Delete of a PermitSemaphore
-- Twice    A second run finds the record of the first, and replies the same.

-- include permits
-- include record
-- include mark
local record, number = KEYS[3], ARGV[3]
local what = recorded(record, number)
if what then
  return what == 'deleted' and 1 or 0
end
local left, foreign, mark = marked(free, KEYS[4])
foreign = foreign or others('PermitSemaphore', left and mark)
if foreign then
  return foreign
end
local was = left or redis.call('exists', held) == 1
note(record, number, was and 'deleted' or 'unset')
local reply = done(record, redis.pcall('del', free, held, KEYS[4]))
if type(reply) == 'table' then
  return reply
elseif not was then
  return 0
end
announce(ARGV[2], ARGV[1], '0') -- Redisson's publishes nothing. No Java thread takes a permit for it
return told(1)
