-- semaphore/delete: delete a semaphore, and make waiters poll.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  channel
-- ARGV[3]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  deleted
--          0  there was none
-- Caller   Delete of a Semaphore
-- Twice    A second run finds the record of the first, and replies the same.

-- include record
-- include publish
-- include total
local permits, record, all = KEYS[1], KEYS[2], KEYS[3]
local number, channel, how = ARGV[1], ARGV[2], ARGV[3]
local what = recorded(record, number)
if what then
  return what == 'deleted' and 1 or 0
end
local free, foreign = numbers(permits, all, KEYS[4])
if foreign then
  return foreign
elseif not free then
  note(record, number, 'unset')
  redis.call('del', all) -- of a semaphore that Java has deleted
  return 0
end
note(record, number, 'deleted')
local reply = done(record, redis.pcall('del', permits, all))
if type(reply) == 'table' then
  return reply
end
announce(how, channel, '0') -- Redisson's publishes nothing. No Java thread takes a permit for it
return told(1)
