-- clock/merge: make one fencing clock of the slots' clocks, on a server whose data were the data of a
-- cluster.
--
-- KEYS[1]             the one fencing clock: the hash of clock/split, or a string again
-- KEYS[2], KEYS[3]... the clocks of some slots
-- ARGV[1]  'whole': it becomes a string; absent: not yet
-- Reply    1  it is a hash, or was
--          0  it is not
-- Caller   an acquire that has found the hash
-- Twice    Clocks are only lifted, and a clock is deleted in the step that takes it into account.
--          So clients may do this at the same time, and a late copy does no harm.
-- Memory   As clock/split; in between, a server at its limit refuses it, and with it the acquire.
-- Replica  It always writes, so it must be a master.

local one, whole = KEYS[1], ARGV[1]
local last = redis.pcall('get', one)
local split = type(last) == 'table' -- of another type
if split then
  last = redis.call('hget', one, 'floor')
end
last = tonumber(last or 0)
local most = last
for i = 2, #KEYS do
  most = math.max(most, tonumber(redis.call('get', KEYS[i]) or 0))
end
if split and not whole then
  redis.call('hset', one, 'floor', most)
else
  redis.call('del', one)
  redis.call('set', one, most)
end
for i = 2, #KEYS do
  redis.call('del', KEYS[i])
end
return split and 1 or 0
