-- semaphore/release: put permits back, and wake waiters. It makes the semaphore if there is none, as Redisson's does. With
-- ARGV[5] the new semaphore has that number of permits, and a release never makes more permits free than the semaphore has:
-- a permit that was taken before a loss of data is not a permit of the new semaphore.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  permits
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  how many permits to set if no number is set; absent: none
-- Reply    1, or the error OVERFLOW: there would be too many
-- Caller   Release of a Semaphore
-- Twice    A second run finds the record of the first.

-- include record
-- include publish
-- include total
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, n, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local what = recorded(record, number)
local free, foreign, all = numbers(permits, key, KEYS[4])
if foreign then
  return foreign
elseif what then
  return 1
end
local initial = tonumber(ARGV[5])
if initial and all then
  n = math.min(n, math.max(all - free, 0))
end
if (free or 0) + n > MOST then
  return OVERFLOW
end
note(record, number, n)
local now
if not free and initial then
  now = initial
  local reply = done(record, setNumbers(permits, now, key, now, 0, maker(record, number)))
  if reply.err then
    return reply
  end
else
  if not free then
    redis.call('del', key) -- of what was here before
  end
  now = done(record, redis.pcall('incrby', permits, n))
  if type(now) == 'table' then
    return now
  end
end
if now >= 0 then -- a negative number would be an error in a Java client
  announce(how, channel, now)
end
return told(1)
