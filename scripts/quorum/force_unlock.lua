-- quorum/force_unlock: take a node's vote back from the hold that has it, or only from a
-- given one.
--
-- KEYS[1]  record of the hold
-- ARGV[1]  hold id, or '' for any
-- ARGV[2]  time to keep a tombstone after the end of the lease, ms
-- ARGV[3]  prefix of tombstones
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- and one key and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    {1, id, token}  taken back; token 0: it was not (yet) a hold
--          {0}             no vote (for that hold)
-- Caller   ForceUnlock, ForceUnlockIf of a RedLock, on all nodes
-- Twice    The second run finds nothing. If a first run is possible, the caller takes the
--          outcome for unknown.
-- Replica  A demoted master, whose data may be old, refuses the HDEL with READONLY.

-- include time
-- include publish
-- include admission
-- include vote
local record = KEYS[1]
local id, keep, gone, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local now = micros()
local _, unfit = mayVote(now)
if unfit then
  return unfit
end
local vote, held = voted(record, now)
local last = vote[1]
if not last or id ~= '' and last ~= id then
  redis.call('hdel', record, '') -- a demoted master refuses: its data may be old
  return {0}
end
-- Also if its time is over: the clock that says so may be wrong, and be set right. The
-- tombstone outlasts the lease, so that a late renewal does not bring the vote back.
keep = math.max(left(vote, now), 0) + keep
redis.call('del', record)
redis.call('set', gone .. last, 1, 'px', keep)
if not held then
  return {0}
end
announce(how, channel, '0')
return told({1, held, tonumber(vote[4] or 0)})
