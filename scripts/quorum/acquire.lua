-- quorum/acquire: one node's vote for a hold of a RedLock.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- and two keys and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    'count:µs'   granted: the stamp of the vote. count is the value that the counter got
--                       by this grant
--          {0, ms, id}  that hold has the vote, for ms more
--          {-1}         this hold was abandoned: a late copy, nothing done
-- Caller   Lock, TryLock of a RedLock, on all nodes in parallel
-- Twice    A node that has voted for the hold answers as it did the first time, and
--          changes nothing.
-- Memory   The counter is written first: a node at its memory limit refuses it, and with it
--          the vote.

-- include grant
local record, counter, tombstone = KEYS[1], KEYS[2], KEYS[4]
local id, lease = ARGV[1], ARGV[2]
local new, n = redis.call('exists', tombstone, record) == 0, nil
if new and #KEYS == 4 then
  -- The usual case ends here. One string is a reply that Redis writes much faster than a list.
  n = redis.call('incr', counter)
  if isNext(n) then
    local time = redis.call('time')
    return grant(record, n, time[1] * 1000000 + time[2], id, lease)
  end
end

-- include time
-- include counter
-- include admission
-- include vote
local now = micros()
local floor, unfit = mayVote(now)
if unfit then
  return unfit
end
if not new then
  local vote, held = voted(record, now)
  local abandoned = redis.call('exists', tombstone) == 1
  if held or abandoned then
    redis.call('hdel', record, '') -- a replica refuses: its data may be old, or another node's
  end
  if abandoned then
    return {-1}
  elseif held == id then
    return vote[3]
  elseif held then
    return {0, left(vote, now), held}
  end
end
n = draw(counter, KEYS[3], floor, n)
if not new then
  redis.call('del', record)
end
return grant(record, n, now, id, lease)
