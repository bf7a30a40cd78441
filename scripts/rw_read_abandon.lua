-- rw_read_abandon: end the reading of a stay, and its waiting, for good, whatever
-- became of its requests.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this stay's reading
-- KEYS[3], KEYS[4]  readers that wait, and that go before writers; unless
--          readers are preferred
-- ARGV[1]  stay id
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  time to keep the tombstone, ms; 0: none is needed
-- Reply    1, 0 or -1, as rw_read_release
-- Caller   an acquire that was given up, and the last release of a stay whose
--          first acquire has copies under way
-- Twice    A second run finds the stay gone and lengthens the tombstone.
-- Memory   The DEL lets the SET pass on a server at its memory limit.

-- include announce
-- include rw
-- include rw_turns
-- include rw_leave
if ARGV[5] ~= '0' then
  redis.call('del', KEYS[2])
  redis.call('set', KEYS[2], 1, 'px', ARGV[5])
end
local kept = KEYS[3] and come()
local was = redis.call('hget', lock, stay)
if was then
  return readerLeaves(was)
end
if kept then
  announce(ARGV[4], ARGV[3], '1') -- writers that it kept out may come in
end
return absent()
