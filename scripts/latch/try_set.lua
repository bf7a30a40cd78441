-- latch/try_set: set the count of a latch that is open.
--
-- KEYS[1]  count; absent: the latch is open
-- KEYS[2]  record of the page
-- KEYS[3]  mark: see shared/others.lua
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  count
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  set
--          0  there is a count
-- Caller   TrySetCount of a CountDownLatch
-- Twice    A second run finds the record of the first, and replies the same.

-- include record
-- include count
-- include publish
-- include others

-- MARKED is how long the mark shows that the number is a latch, ms: a latch that Java opens leaves its mark behind.
local MARKED = 24 * 3600 * 1000

local latch, record, mark = KEYS[1], KEYS[2], KEYS[3]
local number, n, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or 0
end
local left, foreign = count(latch)
if left then
  foreign = others('CountDownLatch', redis.call('get', mark), KEYS[4])
end
if foreign then
  return foreign
elseif left then
  note(record, number, 'unset')
  return 0
end
note(record, number, 'set')
local reply = done(record, redis.pcall('set', latch, n))
if reply.err then
  return reply
end
redis.call('set', mark, 'CountDownLatch', 'px', MARKED)
announce(how, channel, '1') -- closes the gates of Java waiters
return told(1)
