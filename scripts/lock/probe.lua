-- lock/probe: whether a lock is held, and how often one hold of it has been entered.
--
-- KEYS[1]  lock hash
-- ARGV[1]  hold id, or ''
-- Reply    {held, entries}: 1 if the lock is held, else 0; entries of that hold
-- Caller   IsLocked, HoldCount
-- Twice    Reads only.

-- include hash
local lock, id = KEYS[1], ARGV[1]
local reply = foreignAt(lock)
if reply then
  return reply
end
return {redis.call('exists', lock), tonumber(redis.call('hget', lock, id) or 0)}
