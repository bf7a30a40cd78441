-- quorum/renew: lengthen a node's vote, or grant it anew if no hold has it.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  stamp of the vote that the client knows, or ''
-- and two keys and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    {1, µs, stamp}  continuous: the vote has lasted for µs, since that grant
--          {2, µs, stamp}  fresh: it was granted anew, and counts from the next round on
--          {0}             the hold was abandoned
--          {-1}            another hold has the vote
-- Caller   the watchdog, Extend
-- Twice    A copy gets {2, µs, stamp} too, until the client knows the stamp of the vote
--          that was granted anew. The time only grows.
-- Memory   The PEXPIRE, or the HDEL, which changes nothing, lets the rest pass on a node at
--          its memory limit.

-- include time
-- include admission
-- include vote
-- include counter
local record, counter, highest, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, lease, met = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = micros()
local floor, unfit = mayVote(now)
if unfit then
  return unfit
end
local abandoned = redis.call('exists', tombstone) == 1
local vote, held = voted(record, now)
if not abandoned and held == id and vote[2] < now + lease * 1000 then
  redis.call('pexpire', record, KEEP)
  redis.call('hset', record, 'until', string.format('%.0f', now + lease * 1000))
else
  redis.call('hdel', record, '')
end
if abandoned then
  return {0}
elseif not held then
  local n = draw(counter, highest, floor)
  redis.call('del', record)
  local stamp = grant(record, n, now, id, lease)
  return {2, 0, stamp}
elseif held ~= id then
  return {-1}
end
local stamp = vote[3]
return {stamp == met and 1 or 2, age(stamp, now), stamp}
