-- probe: whether a lock is held, and how often one hold of it has been entered.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id, or ''
-- Reply    {1 if anybody holds the lock or 0, the entries of the stay}
-- Caller   IsLocked, HeldBy
-- Twice    Reads only.

-- include holders
local reply = strange(KEYS[1])
if reply then
  return reply
end
return {redis.call('exists', KEYS[1]), tonumber(redis.call('hget', KEYS[1], ARGV[1]) or 0)}
