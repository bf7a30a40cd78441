-- fairpermits/add: change how many permits a PermitSemaphore WithFairness has. It is made if
-- there is none.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of the page
-- KEYS[7]  the number of a PermitSemaphore without fairness, or another lock
-- KEYS[8]  see shared/setting.lua
-- ARGV[1]  number of the operation
-- ARGV[2]  how many more; may be negative
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  prefix of the channels of clients with waiters
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- ARGV[6]  channel of waiters that need more permits than exist
-- Reply    1; 0 if this was given up: a late copy, nothing done; or the error OVERFLOW:
--          there would be too many, held ones included, or too few
-- Caller   AddPermits
-- Twice    A second run finds the record of the first, or of its give-up.

-- include permitqueue
-- include record
-- include count
-- include setting
local record, other, latest = KEYS[6], KEYS[7], KEYS[8]
local number, more, term = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local what = recorded(record, number)
if what then
  return (what == 'gone' or what == 'late') and 0 or 1
elseif redis.call('exists', other) == 1 then
  return redis.error_reply('FOREIGN another type of this name is in use')
end
local all = redis.call('hget', state, 'total')
if math.abs((all or 0) + more) > MOST then
  return OVERFLOW
end
local before = all and lastSetting(latest) or setting(latest, record, number)
note(record, number, string.format('%s %.0f %s', all and 'more' or 'made', more, before)) -- see undo
local reply = done(record, grow(more))
if type(reply) == 'table' then
  return reply
end
reap(term)
if more > 0 then
  announce(ARGV[5], ARGV[6], more)
end
wake(ARGV[4], ARGV[5], term)
return told(1)
