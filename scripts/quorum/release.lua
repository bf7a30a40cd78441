-- quorum/release: take a node's vote back from a hold; with a tombstone, for good.
--
-- KEYS[1]  record of the hold
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of this hold; without it none is needed, because the node has answered
--          all requests for its vote
-- ARGV[1]  hold id
-- ARGV[2]  channel
-- ARGV[3]  token of the hold; 0: it never was one. Negative: the node was at the token while
--          it voted for the hold, so the counter matters only if it has forgotten that
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  time to keep the tombstone, ms; only with KEYS[4]
-- With KEYS[1], ARGV[1] and ARGV[2] alone the script publishes by 'publish' and does not change the counter: the node
-- was at the token, or there is none. If the reply is not 1, the client sends a second request with the token.
-- Reply    1  taken back, with these three alone; else {1, µs, stamp}: and the vote had lasted for µs,
--             since the grant with that stamp. In addition n, if n connections got the message: see shared/publish.lua
--          0  the node has no vote for any hold
--          -1 another hold has the vote
--          -2 as 0, and the counter has not passed a token > 0, so the node has voted for no hold that
--             came later
--          -3 as 0, and the counter is behind a token to which it had come: the node has old data
-- Caller   Unlock, and an abandoned or repeated acquire, on the nodes that have voted or may
--          have; on the others if the replies of these do not show whether the hold has lasted
-- Twice    A second run lengthens the tombstone. It never touches the vote for another
--          hold.
-- Memory   The DEL, or the HDEL, lets the SETs pass on a node at its memory limit.

local record, tombstone = KEYS[1], KEYS[4]
local id, channel = ARGV[1], ARGV[2]
-- Also if the time of the record is over: no other hold has had the vote since, and the clock may be wrong, and be
-- set right later.
local had, stamp = redis.call('hget', record, 'attempt') == id, nil
if had then
  if #KEYS > 1 then
    stamp = redis.call('hget', record, 'stamp')
  end
  redis.call('del', record)
  if #KEYS == 1 then
    -- The usual case ends here. The next lines do the work of announce and told, which are not defined yet.
    local heard = redis.pcall('publish', channel, '0')
    if type(heard) == 'table' then
      return {1, heard.err}
    end
    return heard > 0 and {1, tostring(heard)} or 1
  end
end

-- include publish
-- include time
-- include vote
-- include counter
local token, how = tonumber(ARGV[3] or 0), ARGV[4]
local reply
if had then
  reply = told({1, age(stamp, micros()), stamp}, announce(how, channel, '0'))
else
  redis.call('hdel', record, '')
end
if tombstone then
  redis.call('set', tombstone, 1, 'px', ARGV[5])
end
local nobody = 0
if token > 0 or token < 0 and not had then
  local counter, highest = KEYS[2], KEYS[3]
  local known = count(counter, highest, 0)
  nobody = known <= token and -2 or 0
  if known < -token then
    nobody = -3
  end
  token = math.abs(token)
  if known < token then
    raise(counter, highest, token) -- so that the next hold needs one round trip
  end
end
if had then
  return reply
end
local _, held = voted(record, micros())
return held and -1 or nobody
