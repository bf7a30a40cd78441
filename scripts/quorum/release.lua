-- quorum/release: take a node's vote back from a hold; with a tombstone, for good.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of this hold
-- ARGV[1]  hold id
-- ARGV[2]  time to keep the tombstone, ms; 0: none is needed, because the node has answered
--          all requests for its vote
-- ARGV[3]  token of the hold; 0: it never was one. Negative: the node was at the token while
--          it voted for the hold, so the counter matters only if it has forgotten that
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- and one key and two arguments at the end, with a quarantine: see shared/admission.lua
-- Reply    1  taken back
--          0  the node has no vote for any hold
--          -1 another hold has the vote
-- Caller   Unlock, and an abandoned or repeated acquire, on the nodes that have voted or
--          may have
-- Twice    A second run lengthens the tombstone. It never touches the vote for another
--          hold.
-- Memory   The DEL, or the HDEL, lets the SETs pass on a node at its memory limit.

-- include publish
local record, counter, highest, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, keep, token, channel, how = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
-- Also if the time of the record is over: no other hold has had the vote since, and the
-- clock may be wrong and be set right.
local had = redis.call('hget', record, 'attempt') == id

local function takeBack()
  redis.call('del', record)
  announce(how, channel, '0')
  return told(1)
end

if had and #KEYS == 4 and keep == '0' and token <= 0 then -- most often; the rest is not even defined
  return takeBack()
end
-- include time
-- include admission
-- include vote
-- include counter
local floor, unfit = mayVote()
if unfit then
  return unfit
end
local reply
if had then
  reply = takeBack()
else
  redis.call('hdel', record, '')
end
if keep ~= '0' then
  redis.call('set', tombstone, 1, 'px', keep)
end
if token > 0 or token < 0 and not had then
  token = math.abs(token)
  if count(counter, highest, floor) < token then
    raise(counter, highest, token) -- so that the next hold needs one round trip
  end
end
if had then
  return reply
end
local _, held = voted(record, micros())
return held and -1 or 0
