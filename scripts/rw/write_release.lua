-- rw/write_release: lower the count of a write hold, or end it. A read hold of its owner
-- goes on.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2], KEYS[3]  waiting readers, and readers that go before writers: see
--          shared/turns.lua; absent if readers are preferred, or entries remain
-- ARGV[1]  hold id
-- ARGV[2]  entries that remain; 0 ends the hold
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    2  count lowered
--          1  ended
--          0  no such hold
--          -1 no such hold, held by others
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the last release the field is gone, so
--          a copy finds nothing to do.
-- Memory   HDEL is allowed at the memory limit, and lets HSET pass: see lock/release.
-- Replica  "No such hold" must come from a master: see lock/release.

-- include leave
local lock, readers, admitted = KEYS[1], KEYS[2], KEYS[3]
local id, entries, timers, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local writer = id .. ':write'
if redis.call('hexists', lock, writer) == 0 then
  return absent(lock, id)
end
if entries == '0' then
  return told(writerLeaves(lock, readers, admitted, timers, id, channel, how))
end
redis.call('hdel', lock, '')
redis.call('hset', lock, writer, entries)
return 2
