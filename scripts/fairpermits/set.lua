-- fairpermits/set: set the number of permits of a PermitSemaphore WithFairness, free and held ones together.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of the page
-- KEYS[7]  the number of a PermitSemaphore without fairness, or another lock
-- KEYS[8]  see shared/setting.lua
-- ARGV[1]  number of the operation
-- ARGV[2]  permits
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  prefix of the channels of clients with waiters
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- ARGV[6]  channel of waiters that need more permits than exist
-- Reply    1; 0 if this was given up: a late copy, nothing done
-- Caller   SetPermits
-- Twice    A second run finds the record of the first, and replies the same.

-- include permitqueue
-- include record
-- include setting
local record, other, latest = KEYS[6], KEYS[7], KEYS[8]
local number, n, term = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or 0
elseif redis.call('exists', other) == 1 then
  return redis.error_reply('FOREIGN another type of this name is in use')
end
local more = n - (redis.call('hget', state, 'total') or 0)
note(record, number, 'set')
local reply = done(record, grow(more))
if type(reply) == 'table' then
  return reply
end
setting(latest, record, number)
reap(term)
if more > 0 then
  announce(ARGV[5], ARGV[6], more)
end
wake(ARGV[4], ARGV[5], term)
return told(1)
