-- rw_read_release: lower the count of a read hold, or end it.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  count that remains
-- Reply    2  count lowered
--          1  the stay reads no more; the lock is free if it was the last reader
--          0  no such hold
--          -1 no such hold, and others hold the lock
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the last release the field is gone, so
--          a copy finds nothing to do.
-- Memory   HDEL is allowed at the memory limit, and lets HSET pass.
--
-- A hold whose timer has run out is not there for a partial release. The last
-- release counts all the same: as long as the field stands, no writer was in.

-- include announce
-- include rw
-- include rw_turns
-- include rw_leave
local was, count = redis.call('hget', lock, stay), tonumber(ARGV[5])
if not was then
  return absent()
end
if count == 0 then
  return readerLeaves(was)
end
if left(timer(stay, 1)) <= 0 then
  return absent()
end
redis.call('hdel', lock, '')
redis.call('hset', lock, stay, ARGV[5])
for i = tonumber(was), count + 1, -1 do
  drop(i)
end
return 2
