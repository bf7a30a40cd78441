-- rw_write_release: lower the count of a write hold, or end it. If its owner
-- reads too, it reads on.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  count that remains
-- Reply    2  count lowered
--          1  the stay writes no more
--          0  no such hold
--          -1 no such hold, and others hold the lock
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the last release the field is gone, so
--          a copy finds nothing to do.
-- Memory   HDEL is allowed at the memory limit, and lets HSET pass.

-- include announce
-- include rw
-- include rw_turns
-- include rw_leave
if redis.call('hexists', lock, writer) == 0 then
  return absent()
end
if ARGV[5] == '0' then
  return writerLeaves()
end
redis.call('hdel', lock, '')
redis.call('hset', lock, writer, ARGV[5])
return 2
