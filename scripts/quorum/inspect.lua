-- quorum/inspect: the vote of a node.
--
-- KEYS[1]  record of the hold
-- and two keys and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    see lock/inspect: {ms, token, -1, hold id, '1', 'exclusive'}, the hold that has
--          the vote, and for how long; token 0: not (yet) a hold. A node does not store how
--          often the owner has entered. {-2, 0, -1}: no hold has the vote
-- Caller   IsLocked, State, HoldCount, Watch of a RedLock
-- Twice    It changes nothing.
-- Replica  It refuses the HDEL with READONLY: its data may be old, or another node's.

-- include time
-- include admission
-- include vote
local record = KEYS[1]
local now = micros()
local _, unfit = mayVote(now)
if unfit then
  return unfit
end
redis.call('hdel', record, '')
local vote, held = voted(record, now)
if not held then
  return {-2, 0, -1}
end
return {left(vote, now), tonumber(vote[4] or 0), -1, held, '1', 'exclusive'}
