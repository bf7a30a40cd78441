-- queued_probe: whether a lock with a queue of its own is held in a mode, and how
-- often one hold in that mode has been entered.
--
-- KEYS[1], KEYS[2]  see queued
-- ARGV[1]  stay id, or ''
-- ARGV[2]  'exclusive' or 'shared'
-- Reply    {1 if anybody holds it in that mode or 0, the entries of the stay}
-- Caller   IsLocked, HeldBy
-- Twice    Reads only.

-- include signs
-- include queued
local stay, mode = ARGV[1], ARGV[2]
local alone = live('exclusive') and 1 or 0
local n = alone
if mode == 'shared' then
  n = redis.call('zcount', ends, string.format('%.0f', now), '+inf') - alone
end
local count = held(mode, stay) and redis.call('hget', holders, mode == 'shared' and stay or 'count')
return {math.min(n, 1), tonumber(count or 0)}
