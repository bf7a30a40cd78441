-- clock/raise: lift the fencing clock of a slot to the last token that the one clock gave before
-- the deployment became a cluster.
--
-- KEYS[1]  the fencing clock of the slot
-- ARGV[1]  the least that it is to be, µs
-- Reply    1  it is
-- Caller   the first acquire of a client in the slot
-- Twice    The clock is never lowered, so a late copy does no harm.
-- Replica  It always writes, so it must be a master.

local clock = KEYS[1]
redis.call('set', clock, math.max(tonumber(redis.call('get', clock) or 0), tonumber(ARGV[1])))
return 1
