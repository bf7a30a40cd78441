-- red_force_unlock: take a node's vote back from whoever has it, or only from a
-- given attempt.
--
-- KEYS[1]  record
-- ARGV[1]  attempt id, or '' for any
-- ARGV[2]  what tombstones begin with
-- ARGV[3]  time to keep a tombstone after the end of the lease, ms
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    {1, attempt, token}  taken back; token 0: it was not (yet) a hold
--          {0}                  there was none (of that attempt)
-- Caller   ForceUnlock, ForceUnlockIf of a RedLock, on all nodes
-- Twice    The second run finds nothing: if there may have been a first one, the
--          caller does not know.

-- include announce
-- include red_standing
-- include red
local held, last = current(), redis.call('hget', record, 'attempt')
if not last or ARGV[1] ~= '' and last ~= ARGV[1] then
  redis.call('hdel', record, '')
  return {0}
end
-- Also if its time is over: the clock that says so may be wrong, and be set right.
-- A renewal does not bring it back: the next one may come late in the lease.
local token = tonumber(redis.call('hget', record, 'token') or 0)
local keep = math.max(left(), 0) + tonumber(ARGV[3])
redis.call('del', record)
redis.call('set', ARGV[2] .. last, 1, 'px', keep)
if not held then
  return {0}
end
announce(ARGV[5], ARGV[4], '0')
return {1, held, token}
