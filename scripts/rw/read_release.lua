-- rw/read_release: lower the count of a read hold, or end it.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  hold id
-- ARGV[2]  entries that remain; 0 ends the hold
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    2  count lowered
--          1  ended; the lock is free if this was the last reader
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the last release the field is gone, so a copy
--          finds nothing to do.
-- Memory   HDEL is allowed at the memory limit, and lets HSET pass: see lock/release.
-- Replica  "No such hold" must come from a master: see lock/release.
--
-- For a partial release, a hold whose timer has expired does not exist. The last release succeeds even then: while
-- the field exists, no writer has entered.

-- include leave
local lock = KEYS[1]
local id, entries, timers, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local was = redis.call('hget', lock, id)
if not was then
  return absent(lock, id)
end
if entries == '0' then
  return told(readerLeaves(lock, timers, id, was, channel, how))
end
if left(lock, timer(timers, id, 1)) <= 0 then
  return absent(lock, id)
end
redis.call('hdel', lock, '')
redis.call('hset', lock, id, entries)
for i = tonumber(was), tonumber(entries) + 1, -1 do
  drop(timers, id, i)
end
return 2
