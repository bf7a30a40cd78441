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
-- include count
-- include publish
-- include total
-- include others
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, more, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local what = recorded(record, number)
local free, foreign = count(permits)
foreign = foreign or others('PermitSemaphore', KEYS[4])
if foreign then
  return foreign
elseif what then
  return (what == 'gone' or what == 'late') and 0 or 1
end
local now = (free or 0) + more
if math.abs(now) > MOST then
  return OVERFLOW
end
local all, times = 0, 0
if free then
  all, times = total(key)
end
note(record, number, string.format('%s %.0f %.0f', free and 'more' or 'made', more, times)) -- see undo
local reply = done(record, redis.pcall('set', permits, string.format('%.0f', now)))
if reply.err then
  return reply
end
if all then
  totalIs(key, all + more, times)
end
if now >= 0 then -- a negative number would be an error in a Java client
  announce(how, channel, string.format('%.0f', now))
end
return told(1)
