-- once/fail: free the lock of a Once whose function has failed, and keep the error for waiters.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  result: see once/peek
-- ARGV[1]  hold id
-- ARGV[2]  text of the error
-- ARGV[3]  time to keep the error, ms: waiters read it within that time
-- ARGV[4]  time to keep the tombstone, ms; 0: none is needed
-- ARGV[5]  channel
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  done
--          0  this hold is gone, and no error is written
--          -1 the same, and another caller runs
-- Caller   Do
-- Twice    The first run ends the hold. A copy finds no hold, and publishes nothing.
-- Memory   As once/finish; the text is bounded.
-- Replica  "Gone" must come from a master: see lock/release.

-- include publish
-- include time
local lock, tombstone, result = KEYS[1], KEYS[2], KEYS[3]
local id, text, within, late, channel, how = unpack(ARGV)
local freed = redis.call('hdel', lock, id) == 1
if late ~= '0' then
  redis.call('set', tombstone, 1, 'px', late)
end
if not freed then
  return -redis.call('exists', lock)
end
redis.call('hset', result, 'failed', string.format('%.0f', math.floor(micros() / 1000)), 'error', text)
redis.call('pexpire', result, within)
announce(how, channel, '0')
return told(1)
