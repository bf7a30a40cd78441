-- red_renew: lengthen a node's vote, or give it anew if nobody has it.
--
-- KEYS[1]  record
-- KEYS[2]  counter of the lock
-- KEYS[3]  highest counter of all locks
-- KEYS[4]  tombstone of the attempt
-- ARGV[1]  attempt id
-- ARGV[2]  stamp of the vote, as far as the client knows; '': none
-- ARGV[3]  lease, ms
-- Reply    {1, µs, stamp}  the vote has stood since that grant, for so long
--          {2, µs, stamp}  it was given anew: it counts from the next round on
--          {0}             the attempt was given up
--          {-1}            another has the node's vote
-- Caller   the watchdog, Extend
-- Twice    A vote given anew answers {2, µs, stamp} to a copy as well, until the
--          client knows its stamp. Time only grows.

-- Memory   The HDEL, which changes nothing, lets the rest pass on a node at its
--          memory limit.

-- include red_standing
-- include red
redis.call('hdel', record, '')
if redis.call('exists', KEYS[4]) == 1 then
  return {0}
end
local held, lease = current(), tonumber(ARGV[3])
if not held then
  return {2, 0, grant(ARGV[1], lease)}
elseif held ~= ARGV[1] then
  return {-1}
end
lengthen(lease)
local stamp = redis.call('hget', record, 'stamp')
return {stamp == ARGV[2] and 1 or 2, age(stamp), stamp}
