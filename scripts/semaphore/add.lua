-- semaphore/add: change the number of permits. As Redisson's it ends a TTL of the key.
--
-- KEYS[1]  free permits, a number; less than 0 if more were removed than were free
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  how many more; may be negative
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1; 0 if this was given up: a late copy, nothing done; or the error OVERFLOW:
--          there would be too many, or too few
-- Caller   AddPermits of a Semaphore
-- Twice    A second run finds the record of the first, or of its give-up.

-- include record
-- include publish
-- include total
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, more, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local what = recorded(record, number)
local free, foreign, all, times, made = numbers(permits, key, KEYS[4])
if foreign then
  return foreign
elseif what then
  return (what == 'gone' or what == 'late') and 0 or 1
end
local now = (free or 0) + more
if math.abs(now) > MOST then
  return OVERFLOW
end
if not free then
  all, made = 0, maker(record, number)
end
note(record, number, string.format('%.0f %s %s %.0f', more, made, free and 'more' or 'made', times)) -- see undo
local reply
if all then
  reply = setNumbers(permits, now, key, all + more, times, made)
else
  reply = redis.pcall('set', permits, string.format('%.0f', now))
end
if done(record, reply).err then
  return reply
end
if now >= 0 then -- a negative number would be an error in a Java client
  announce(how, channel, string.format('%.0f', now))
end
return told(1)
