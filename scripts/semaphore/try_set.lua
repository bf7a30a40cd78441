-- semaphore/try_set: set the permits of a semaphore that has none.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  permits
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  set
--          0  they were set before
-- Caller   TrySetPermits of a Semaphore
-- Twice    A second run finds the record of the first, and replies the same.

-- include record
-- include publish
-- include total
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, n, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or 0
end
local free, foreign = numbers(permits, key, KEYS[4])
if foreign then
  return foreign
elseif free then
  note(record, number, 'unset')
  return 0
end
note(record, number, 'set')
local reply = done(record, setNumbers(permits, n, key, n, 0, maker(record, number)))
if reply.err then
  return reply
end
announce(how, channel, ARGV[2])
return told(1)
