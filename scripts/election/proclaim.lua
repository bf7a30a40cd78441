-- election/proclaim: set the value of the leader of an Election.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- ARGV[1]  hold id of the leader
-- ARGV[2]  value
-- ARGV[3]  number of this request: its client's later requests have higher ones
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  channel of observers of the election
-- Reply    1  proclaimed, or a later request of the same leader has done so already
--          0  this leader does not lead any more
--          -1 another leads
-- Caller   Proclaim
-- Twice    A copy sets what is set already, or has a lower number than the value that is
--          there, and changes nothing.
-- Memory   The first HDEL changes nothing, but lets the HSET pass on a server at its
--          memory limit.
-- Replica  "Not any more" must come from a master: see lock/release.

-- include queue
local id, value, edition, how, news = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
redis.call('hdel', holders, '')
if not held('exclusive', id) then
  return -others('exclusive', id)
end
if tonumber(redis.call('hget', holders, 'edition') or 0) <= tonumber(edition) then
  redis.call('hset', holders, 'value', value, 'edition', edition)
  announce(how, news, '0')
end
return told(1)
