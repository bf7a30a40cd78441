-- rw/read_abandon: end the reading of a hold, and its waiting, for good, whatever
-- became of its requests.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of this hold's reading
-- KEYS[3], KEYS[4]  readers that wait, and that go before writers; unless
--          readers are preferred
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[3]  what the names of timers begin with
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1, 0 or -1, as rw/read_release
-- Caller   an acquire that was given up, and the last release of a hold whose
--          first acquire has copies under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   The DEL lets the SET pass on a server at its memory limit.

-- include leave
local lock, tombstone, readers, admitted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, keep, timers, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if keep ~= '0' then
  redis.call('del', tombstone)
  redis.call('set', tombstone, 1, 'px', keep)
end
local keptOut = readers and come(readers, admitted, id)
local was = redis.call('hget', lock, id)
if was then
  return told(readerLeaves(lock, timers, id, was, channel, how))
end
if keptOut then
  announce(how, channel, '1') -- writers that it kept out may come in
end
return told(absent(lock, id))
