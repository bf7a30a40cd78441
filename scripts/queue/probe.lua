-- queue/probe: whether a FairReadWriteLock or PriorityLock is held in a mode, and how often
-- one hold in that mode has been entered.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- ARGV[1]  hold id, or ''
-- ARGV[2]  'exclusive' or 'shared'
-- Reply    {held, entries}: 1 if the lock is held in that mode, else 0; entries of that hold
-- Caller   IsLocked, HoldCount
-- Twice    Reads only.

-- include queue
local id, mode = ARGV[1], ARGV[2]
local n = live('exclusive') and 1 or 0
if mode == 'shared' then
  n = current() - n
end
local count = held(mode, id) and redis.call('hget', holders, mode == 'shared' and id or 'count')
return {math.min(n, 1), tonumber(count or 0)}
