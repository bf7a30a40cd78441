-- semaphore/drain: take all free permits. As Redisson's it ends a TTL of the key.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- Reply    {1, n}   n were free, and are taken
--          {-1, 0}  this was given up: a late copy, nothing done
-- Caller   Drain of a Semaphore
-- Twice    A second run finds the record of the first, or of its give-up.

-- include record
-- include total
local permits, record, key, number = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local what = recorded(record, number)
if what == 'gone' or what == 'late' then
  return {-1, 0}
elseif what then
  return {1, -tonumber(string.match(what, '^%-?%d+'))}
end
local free, foreign, _, _, made = numbers(permits, key, KEYS[4])
if foreign then
  return foreign
elseif not free or free <= 0 then
  -- Redisson's also sets a number below 0 to 0, which adds permits.
  note(record, number, 0)
  return {1, 0}
end
note(record, number, string.format('%.0f %s', -free, made)) -- see undo
local reply = done(record, redis.pcall('set', permits, 0))
if reply.err then
  return reply
end
return {1, free}
