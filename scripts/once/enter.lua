-- once/enter: the result of a Once, if it is known; otherwise take its free lock.
--
-- KEYS[1]  lock hash: hold id of the caller that runs -> 1
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  fencing clock of the lock
-- KEYS[4]  result: hash, value -> what the caller that ran returned, token -> its token; or
--          failed -> the server ms in which a run failed, error -> its text
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  how long the caller has waited, ms; absent: this is its first look
-- Reply    token      held: the caller is to run
--          {2, 0, value}  the result
--          {3, ms, text}  a run has failed ms ago, while the caller waited: its error
--          {0, pttl, holder, others}  another runs, and holds the lock for pttl ms;
--                      see shared/hash.lua
--          {-1, 0}     this hold was abandoned: a late copy, nothing done
--          {-3, ms}    see shared/quarantine.lua
-- Caller   Do
-- Twice    A second run finds the hold under its own id and changes only the clock. It
--          replies a higher token, but nobody has seen the first. A copy that comes after
--          the hold has ended finds its result or its tombstone, which the client leaves
--          if it knows of a copy that may be under way.
-- Memory   The token is written first: at its memory limit the server refuses it, and
--          with it the whole acquire.

-- include quarantine when served
-- include time
-- include token
-- include ttl
-- include hash
local lock, tombstone, clock, result = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, lease, waited = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or 0)
local value, failed, text = unpack(redis.call('hmget', result, 'value', 'failed', 'error'))
if value then
  return {2, 0, value}
end
if failed then
  -- Who began to wait in the ms of the failure, or after it, has waited for no longer than that. If
  -- the clock has gone back, nothing is known.
  local ago = math.floor(micros() / 1000) - failed
  if ago >= 0 and waited > ago then
    return {3, ago, text}
  end
end
local mine = redis.call('exists', lock, tombstone) > 0
if mine then
  if redis.call('exists', tombstone) == 1 then
    return {-1, 0}
  end
  if redis.call('hexists', lock, id) == 0 then
    return refused(lock, redis.call('pttl', lock))
  end
end
local token = drawToken(clock, micros())
if not mine then
  redis.call('hset', lock, id, '1')
end
lengthen(lock, lease)
return token
