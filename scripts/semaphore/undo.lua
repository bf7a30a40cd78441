-- semaphore/undo: undo what an operation did, and stop its late copies.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page: by how much the operation changed KEYS[1], and what had made the
--          semaphore; of AddPermits also 'more', or 'made' if there were none before, and how often
--          SetPermits had set the number
-- KEYS[3]  how many permits there are
-- ARGV[1]  number of the operation
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  undone
--          0  it had done nothing, or was undone before
-- Caller   an Acquire, Drain or AddPermits that was given up
-- Twice    A second run finds the record of the first.

-- include record
-- include publish
-- include total
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what == 'late' then
  return 0
end
note(record, number, 'gone')
local change, maker, added, set = string.match(what or '', '^(%-?%d+) (%S+) ?(%l*) ?(%d*)$')
change = tonumber(change or 0)
if change == 0 then
  return 0
end
local free, _, all, times, made = numbers(permits, key)
if not free or made ~= maker then
  return 0 -- it is no part of a semaphore that was made anew
elseif added ~= '' and times ~= tonumber(set) then
  return 0 -- SetPermits has made up for it
end
local now = done(record, redis.pcall('incrby', permits, string.format('%.0f', -change)))
if type(now) == 'table' then
  note(record, number, what)
  return now
end
if added == 'made' and now == 0 then
  redis.call('del', permits, key)
elseif added ~= '' and all then
  redis.call('set', key, string.format('%.0f %.0f %s', all - change, times, made))
end
if change < 0 and now >= 0 then
  announce(how, channel, now)
end
return told(1)
