-- fair/release: lower the count of a hold, or end it and wake the head of the line.
--
-- KEYS[1..5]  see shared/linekeys.lua
-- ARGV[1]  hold id
-- ARGV[2]  entries that remain; 0 frees the lock
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  prefix of the waiters' channels
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    2  count lowered
--          1  freed
--          0  no such lock
--          -1 held by others
-- Caller   Unlock, Shutdown
-- Twice    The count is absolute. After the first full release the hold id is gone and
--          never used again: a copy only sweeps the line, and may wake its head once
--          more.
-- Memory   An HDEL lets the HSET pass on a server at its memory limit: see lock/release.
-- Replica  "Not there" must come from a master: see lock/release.

-- include line
local id, entries, term, channels, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local freed
if entries == '0' then
  freed = redis.call('hdel', lock, id) == 1
else
  redis.call('hdel', lock, '')
  if redis.call('hexists', lock, id) == 1 then
    redis.call('hset', lock, id, entries)
    return 2
  end
end
sweep('', term)
tell('', term, channels, how, freed and -2)
return told(freed and 1 or -redis.call('exists', lock))
