-- red_raise: write the token of a hold back to a node that has voted for it, so
-- that every later vote of the node counts past it.
--
-- KEYS[1]  record
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- ARGV[1]  attempt id
-- ARGV[2]  stamp of the node's vote
-- ARGV[3]  token
-- Reply    1  the counter is at least the token
--          0  the vote does not stand any more
-- Caller   Lock, TryLock of a RedLock, before the hold is handed out
-- Twice    The counter only grows. A vote that was given anew, to a late copy of
--          the acquire, has another stamp: the time in between was not ours.

-- include red_standing
-- include red
if current() ~= ARGV[1] or redis.call('hget', record, 'stamp') ~= ARGV[2] then
  redis.call('hdel', record, '') -- a demoted master refuses: its data may be old
  return 0
end
if counter() < tonumber(ARGV[3]) then
  raise(tonumber(ARGV[3]))
end
redis.call('hset', record, 'token', ARGV[3])
return 1
