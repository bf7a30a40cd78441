-- quorum/force_unlock: take a node's vote back from a hold.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  tombstone of the hold; absent without an id
-- ARGV[1]  hold id, or '' to only read the id
-- ARGV[2]  time to keep the tombstone after the end of the lease, ms
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- and two keys and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    {1, id, token}  taken back; token 0: it was not (yet) a hold
--          {2, id, 0}      without an id: the id of the hold that has the vote, or had it last
--          {0}             no vote (for that hold)
-- Caller   ForceUnlock, ForceUnlockIf of a RedLock, on all nodes
-- Twice    A second run finds no vote. If an earlier copy may have run, the caller treats the
--          outcome as unknown.
-- Replica  A demoted master, whose data may be old, refuses the HDEL with READONLY.

-- include time
-- include publish
-- include admission
-- include vote
local record, tombstone = KEYS[1], KEYS[2]
local id, keep, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local now = micros()
local _, unfit = mayVote(now)
if unfit then
  return unfit
end
local vote, held = voted(record, now)
local last = vote[1]
if last ~= id then
  redis.call('hdel', record, '') -- a demoted master refuses: its data may be old
  return last and id == '' and {2, last, 0} or {0}
end
-- Also if the time of the vote is over: the clock may be wrong, and be set right later. The tombstone outlasts
-- the lease, so that a late renewal does not bring the vote back.
keep = math.max(left(vote, now), 0) + keep
redis.call('del', record)
redis.call('set', tombstone, 1, 'px', keep)
if not held then
  return {0}
end
announce(how, channel, '0')
return told({1, held, tonumber(vote[4] or 0)})
