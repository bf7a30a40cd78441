-- semaphore/undo: undo what an operation did, and stop its late copies.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page: what the operation did is by how much it changed KEYS[1], after
--          'more' if that was by AddPermits, or 'made' if there were none before
-- KEYS[3]  how many permits there are
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
-- include total
local permits, record, all = KEYS[1], KEYS[2], KEYS[3]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what == 'late' then
  return 0
end
note(record, number, 'gone')
local change = tonumber(what and string.match(what, '%-?%d+$') or 0)
if change == 0 or not count(permits) then
  return 0 -- a semaphore that was deleted is not made again
end
local now = done(record, redis.pcall('incrby', permits, string.format('%.0f', -change)))
if type(now) == 'table' then
  note(record, number, what)
  return now
end
local added = string.match(what, '^%l+')
if added == 'made' and now == 0 then
  redis.call('del', permits, all)
elseif added then
  totalGrows(all, -change)
end
if change < 0 and now >= 0 then
  announce(how, channel, now)
end
return told(1)
