-- latch/count_down: lower the count, and free the waiters at 0.
--
-- KEYS[1]  count; absent: the latch is open
-- KEYS[2]  record of the page
-- KEYS[3]  mark: see shared/others.lua
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  counted
--          0  the latch was open: nothing done, and nothing recorded
-- Caller   CountDown of a CountDownLatch
-- Twice    A second run finds the record of the first. If the latch was open there is none,
--          so a client that knows of another copy adds it (record/seal).

-- include record
-- include count
-- include publish
-- include others
local latch, record, mark = KEYS[1], KEYS[2], KEYS[3]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what then
  return 1
end
local left, foreign = count(latch)
if left then
  foreign = others('CountDownLatch', redis.call('get', mark), KEYS[4])
end
if foreign then
  return foreign
elseif not left then
  return 0
elseif left > 1 then
  note(record, number, 'counted')
  local reply = done(record, redis.pcall('decr', latch))
  return type(reply) == 'table' and reply or 1
end
note(record, number, 'counted')
local reply = done(record, redis.pcall('del', latch, mark))
if type(reply) == 'table' then
  return reply
end
if left == 1 then -- Java's latch may have had a count of 0, and is open then
  announce(how, channel, '0')
end
return told(1)
