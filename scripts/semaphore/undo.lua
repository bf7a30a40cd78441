-- semaphore/undo: undo what an operation did, and stop its late copies.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page: what the operation did is by how much it changed KEYS[1]. That of
--          AddPermits begins with 'more', or 'made' if there were none before, and ends with how
--          often SetPermits had set the number
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
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what == 'late' then
  return 0
end
note(record, number, 'gone')
local added, change, before = string.match(what or '', '^(%l*) ?(%-?%d+) ?(%d*)$')
change = tonumber(change or 0)
if change == 0 or not count(permits) then
  return 0 -- a semaphore that was deleted is not made again
end
local all, times
if added ~= '' then
  all, times = total(key)
  if times ~= (tonumber(before) or 0) then
    return 0 -- SetPermits has made up for it
  end
end
local now = done(record, redis.pcall('incrby', permits, string.format('%.0f', -change)))
if type(now) == 'table' then
  note(record, number, what)
  return now
end
if added == 'made' and now == 0 then
  redis.call('del', permits, key)
elseif all then
  totalIs(key, all - change, times)
end
if change < 0 and now >= 0 then
  announce(how, channel, now)
end
return told(1)
