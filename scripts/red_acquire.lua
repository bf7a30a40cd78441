-- red_acquire: one node's vote for a hold of a RedLock.
--
-- KEYS[1]  record of the hold: attempt, stamp, until (server µs), token
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of the attempt
-- ARGV[1]  attempt id
-- ARGV[2]  lease, ms
-- Reply    {1, count, stamp}    granted; the count is the counter's value by this grant
--          {0, ms, attempt}     held by that attempt, for so long
--          {-1}                 the attempt was given up: a late copy
-- Caller   Lock, TryLock of a RedLock, on all nodes at once
-- Twice    A node that holds the attempt answers as it did the first time, and
--          changes nothing.
-- Memory   The counter is written first: a node at its memory limit refuses it,
--          and with it the vote.

-- include red_standing
-- include red
if redis.call('exists', KEYS[4]) == 1 then
  return {-1}
end
local held = current()
if held == ARGV[1] then
  redis.call('hdel', record, '') -- a demoted master refuses: its data may be old
  local stamp = redis.call('hget', record, 'stamp')
  return {1, counted(stamp), stamp}
elseif held then
  return {0, left(), held}
end
local stamp = grant(ARGV[1], tonumber(ARGV[2]))
return {1, counted(stamp), stamp}
