-- semaphore/set: set the number of permits, free and taken ones together. Like Redisson's addPermits it
-- ends a TTL of the key.
--
-- KEYS[1]  free permits, a number; less than 0 if more are taken than there are to be
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  permits
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1   set
--          0   this was given up: a late copy, nothing done
--          -1  it is not known how many there are: nothing done
--          or the error OVERFLOW: there would be too few free
-- Caller   SetPermits of a Semaphore
-- Twice    A second run finds the record of the first, and replies the same.

-- include record
-- include publish
-- include total
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, n, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or what == 'unknown' and -1 or 0
end
local free, foreign, all, times, made = numbers(permits, key, KEYS[4])
if foreign then
  return foreign
end
if free and not counts(all, free) then
  note(record, number, 'unknown')
  return -1
end
local now = free and free + n - all or n
if math.abs(now) > MOST then
  return OVERFLOW
end
note(record, number, 'set')
-- Count the setting even if the number was n: an addition before it must not be undone later.
local reply = done(record, setNumbers(permits, now, key, n, times + 1, free and made or maker(record, number)))
if reply.err then
  return reply
end
if now ~= free and now >= 0 then -- a negative number would be an error in a Java client
  announce(how, channel, string.format('%.0f', now))
end
return told(1)
