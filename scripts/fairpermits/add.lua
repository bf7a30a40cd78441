-- fairpermits/add: change how many permits a PermitSemaphore WithFairness has, by a
-- number or to one.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of this request
-- KEYS[7]  the number of a PermitSemaphore without fairness, or another lock
-- ARGV[1]  permits to add, maybe negative
-- ARGV[2]  time to keep the record, ms
-- ARGV[3]  the most that there may be then; and the most less than none
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  prefix of the channels of clients with waiters
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- ARGV[7]  channel on which those listen who want more permits than there are
-- ARGV[8]  '1': there are to be so many permits, held ones included
-- Reply    1  done
--          0  refused: it would be beyond that
-- Caller   AddPermits, SetPermits
-- Twice    The record tells a copy that the first run has done it.
-- Replica  A refusal must come from a master.

-- include permitqueue
local record, other = KEYS[6], KEYS[7]
local n, keep, limit, term = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('exists', record) == 1 then
  redis.call('zrem', ends, '')
  return 1
elseif redis.call('exists', other) == 1 then
  return redis.error_reply('FOREIGN another type of this name is in use')
end
local all = tonumber(redis.call('hget', state, 'total') or 0)
if ARGV[8] == '1' then
  n = n - all
end
if math.abs(all + n) > limit then
  redis.call('zrem', ends, '')
  return 0
end
redis.call('hincrby', state, 'total', n)
redis.call('hincrby', state, 'free', n)
redis.call('set', record, 1, 'px', keep)
changes()
reap(term)
if n > 0 then
  announce(ARGV[6], ARGV[7], n)
end
wake(ARGV[5], ARGV[6])
return told(1)
