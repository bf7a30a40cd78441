-- semaphore/undo: undo what an operation did, and stop its late copies.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page: what the operation did is by how much it changed KEYS[1]
-- ARGV[1]  number of the operation
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  undone
--          0  it had done nothing, or was undone before
-- Caller   an Acquire, Drain or AddPermits that was given up
-- Twice    A second run finds the record of the first.

-- include record
-- include count
-- include publish
local permits, record = KEYS[1], KEYS[2]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what == 'late' then
  return 0
end
note(record, number, 'gone')
local change = tonumber(what and string.match(what, '%-?%d+$') or 0) -- without the sign of add
if change == 0 or not count(permits) then
  return 0 -- a semaphore that was deleted is not made again
end
local now = done(record, redis.pcall('incrby', permits, string.format('%.0f', -change)))
if type(now) == 'table' then
  note(record, number, what)
  return now
end
if now == 0 and string.find(what, '^%+') then
  redis.call('del', permits) -- AddPermits had made it
elseif change < 0 and now >= 0 then
  announce(how, channel, now)
end
return told(1)
