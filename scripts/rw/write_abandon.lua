-- rw/write_abandon: end a write hold, or its waiting, for good, no matter which of its requests
-- ran.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of this write hold
-- KEYS[3], KEYS[4], KEYS[5]  waiting writers, waiting readers, and readers that go before
--          writers: see shared/turns.lua; absent if readers are preferred
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1, 0 or -1: see rw/write_release
-- Caller   an abandoned acquire; the last release of a hold whose first acquire
--          may have copies under way
-- Twice    A second run finds the hold gone and lengthens the tombstone.
-- Memory   The DEL lets the SET pass on a server at its memory limit.

-- include leave
local lock, tombstone, writers, readers, admitted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, keep, timers, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if keep ~= '0' then
  redis.call('del', tombstone)
  redis.call('set', tombstone, 1, 'px', keep)
end
local waited = writers and redis.call('zrem', writers, id) == 1
if redis.call('hexists', lock, id .. ':write') == 1 then
  return told(writerLeaves(lock, readers, admitted, timers, id, channel, how))
end
if waited then
  announce(how, channel, '1') -- readers that it kept out can enter
end
return told(absent(lock, id))
