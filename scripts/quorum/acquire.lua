-- quorum/acquire: one node's vote for a hold of a RedLock.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  when Redis may delete the record, ms from now: long after the lease
-- and one key and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    {1, count, stamp}  granted; count is the value that the counter got by this grant
--          {0, ms, id}        that hold has the vote, for ms more
--          {-1}               this hold was abandoned: a late copy, nothing done
-- Caller   Lock, TryLock of a RedLock, on all nodes at once
-- Twice    A node that has voted for the hold answers as it did the first time, and
--          changes nothing.
-- Memory   The counter is written first: a node at its memory limit refuses it, and with it
--          the vote.

-- include time
-- include counter
local record, counter, highest, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, lease, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = micros()
local new = redis.call('exists', tombstone, record) == 0
if new and #KEYS == 4 then -- most often; the rest is not even defined
  return {1, grant(record, counter, highest, 0, now, id, lease, keep)}
end
-- include admission
-- include vote
local floor, unfit = mayVote(now)
if unfit then
  return unfit
end
if not new then
  if redis.call('exists', tombstone) == 1 then
    return {-1}
  end
  local vote, held = voted(record, now)
  if held == id then
    redis.call('hdel', record, '') -- a demoted master refuses: its data may be old
    return {1, counted(vote[3]), vote[3]}
  elseif held then
    return {0, left(vote, now), held}
  end
end
return {1, grant(record, counter, highest, floor, now, id, lease, keep, not new)}
