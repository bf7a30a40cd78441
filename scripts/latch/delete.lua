-- latch/delete: delete a latch, which frees all waiters.
--
-- KEYS[1]  count; absent: the latch is open
-- KEYS[2]  record of the page
-- KEYS[3]  mark: see shared/others.lua
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  deleted
--          0  there was none
-- Caller   Delete of a CountDownLatch
-- Twice    A second run finds the record of the first, and replies the same.

-- include record
-- include count
-- include publish
-- include others
local latch, record, mark = KEYS[1], KEYS[2], KEYS[3]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what then
  return what == 'deleted' and 1 or 0
end
local left, foreign = count(latch)
if left then
  foreign = others('CountDownLatch', redis.call('get', mark), KEYS[4])
end
if foreign then
  return foreign
elseif not left then
  note(record, number, 'unset')
  return 0
end
note(record, number, 'deleted')
local reply = done(record, redis.pcall('del', latch, mark))
if type(reply) == 'table' then
  return reply
end
announce(how, channel, '1') -- as Redisson's does; it wakes nobody
announce(how, channel, '0') -- frees Java waiters, which Redisson's leaves asleep
return told(1)
