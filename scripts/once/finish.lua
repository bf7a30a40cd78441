-- once/finish: write the result of a Once, and free its lock.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  result: see once/peek
-- ARGV[1]  hold id
-- ARGV[2]  token of this hold
-- ARGV[3]  result
-- ARGV[4]  time to keep it, ms
-- ARGV[5]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[6]  channel
-- ARGV[7]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  written
--          0  this hold is gone, and no result is written
--          -1 the same, and another caller runs or has run
-- Caller   Do
-- Twice    The first run ends the hold, and its token stays with the result: a copy finds
--          it there, and writes nothing.
-- Memory   Redis never refuses the HDEL, and it lets the writes after it pass on a server at its
--          memory limit: the result was paid for, and the longest is bounded.
-- Replica  "Gone" must come from a master: see lock/release.

-- include publish
local lock, tombstone, result = KEYS[1], KEYS[2], KEYS[3]
local id, token, value, keep, late = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local channel, how = ARGV[6], ARGV[7]
local last, failed = unpack(redis.call('hmget', result, 'token', 'failed'))
local freed = redis.call('hdel', lock, id) == 1
if late ~= '0' then
  redis.call('set', tombstone, 1, 'px', late)
end
if not freed then
  return last == token and 1 or -math.min(redis.call('exists', lock, result), 1)
end
local newer = last and tonumber(last) > tonumber(token)
if not newer then
  redis.call('hset', result, 'token', token, 'value', value)
  if failed then
    redis.call('hdel', result, 'failed', 'error')
  end
  redis.call('pexpire', result, keep)
end
announce(how, channel, '0')
return told(newer and -1 or 1)
