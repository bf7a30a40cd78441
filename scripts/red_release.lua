-- red_release: take a node's vote back from an attempt; with a tombstone, for good.
--
-- KEYS[1]  record
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of the attempt
-- ARGV[1]  attempt id
-- ARGV[2]  time to keep the tombstone, ms; 0: the node has answered all requests for
--          its vote, and needs none
-- ARGV[3]  token of the hold; 0: it was none
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  the vote was the attempt's
--          0  the node has voted for nobody
--          -1 another has the node's vote
-- Caller   Unlock, and an acquire that was given up or is tried anew, on the nodes
--          that have voted, or may have
-- Twice    A second run finds the tombstone and lengthens it. It never touches
--          another's vote.
-- Memory   The DEL, or the HDEL, lets the SET pass on a node at its memory limit.

-- include announce
-- include red_standing
-- include red
if ARGV[2] ~= '0' then
  redis.call('del', KEYS[4])
  redis.call('set', KEYS[4], 1, 'px', ARGV[2])
else
  redis.call('hdel', record, '')
end
if counter() < tonumber(ARGV[3]) then
  raise(tonumber(ARGV[3])) -- so that the next hold needs one round trip
end
-- Also if the time of the record is over: then nobody else has had the vote since,
-- and the clock that says so may be wrong, and be set right.
if redis.call('hget', record, 'attempt') == ARGV[1] then
  redis.call('del', record)
  announce(ARGV[5], ARGV[4], '0')
  return 1
end
return current() and -1 or 0
