-- quorum/raise: write the token of a hold back to a node that has voted for it, so that
-- every later vote of the node counts past it.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- ARGV[1]  hold id
-- ARGV[2]  stamp of the node's vote
-- ARGV[3]  token
-- and two keys and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    1  the counter is at least the token
--          0  the vote has ended
-- Caller   Lock, TryLock of a RedLock, before the hold is returned
-- Twice    The counter only grows. A vote that was granted anew, to a late copy of the
--          acquire, has another stamp: another hold may have had the vote in between.
-- Replica  A demoted master, whose data may be old, refuses the HDEL with READONLY.

-- include time
-- include admission
-- include vote
-- include counter
local record, counter, highest = KEYS[1], KEYS[2], KEYS[3]
local id, stamp, token = ARGV[1], ARGV[2], ARGV[3]
local now = micros()
local floor, unfit = mayVote(now)
if unfit then
  return unfit
end
local vote, held = voted(record, now)
if held ~= id or vote[3] ~= stamp then
  redis.call('hdel', record, '') -- a demoted master refuses: its data may be old
  return 0
end
if count(counter, highest, floor) < tonumber(token) then
  raise(counter, highest, tonumber(token))
end
redis.call('hset', record, 'token', token)
return 1
