-- semaphore/acquire: take permits.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  record of the page
-- KEYS[3]  how many permits there are
-- KEYS[4]  held permits of a PermitSemaphore of this name
-- ARGV[1]  number of the operation
-- ARGV[2]  permits
-- ARGV[3..4]  channel on which to publish how many are left, and 'publish', 'spublish', 'both' or
--          'none'. The channel is '' if the client expects no other waiters; both are absent then if
--          ARGV[5] is absent
-- ARGV[5..6]  how many permits to set if no number is set, and the channel of releases; absent: none
-- Reply    n        taken; n are left
--          {0, n, all}  too few: n of all are free; without all if that is not known
--          {-1, 0}  this acquire was given up: a late copy, nothing done
--          {-5, 0}  no number of permits is set, and there is no ARGV[5]
-- Caller   Acquire, TryAcquire of a Semaphore
-- Twice    A second run finds the record of the first, or of its give-up.

-- include record
-- include publish
-- include total
local permits, record, key = KEYS[1], KEYS[2], KEYS[3]
local number, n = ARGV[1], tonumber(ARGV[2])
local initial = tonumber(ARGV[5])
local what = recorded(record, number)
local free, foreign, all, _, made = numbers(permits, key, KEYS[4])
if foreign then
  return foreign
elseif what == 'gone' or what == 'late' then
  return {-1, 0}
elseif what then
  return math.max(free or 0, 0)
elseif not free and initial then
  free, all, made = initial, initial, maker(record, number)
  local reply = setNumbers(permits, free, key, all, 0, made)
  if reply.err then
    return reply
  end
  announce(ARGV[4], ARGV[6], ARGV[5])
elseif not free then
  return {-5, 0}
end
if free < n then
  if counts(all, free) then
    return {0, free, all}
  end
  return {0, free}
end
note(record, number, string.format('%.0f %s', -n, made)) -- see undo
local left = done(record, redis.pcall('decrby', permits, n))
if (ARGV[3] or '') ~= '' and type(left) ~= 'table' then
  announce(ARGV[4], ARGV[3], left)
end
return left
