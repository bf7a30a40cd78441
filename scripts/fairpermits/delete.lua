-- fairpermits/delete: delete a PermitSemaphore WithFairness, with its holds. Wake the waiters that need more permits than
-- exist, and the first of the queue. The others poll within a third of their waiter lease, and leave the queue then.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of the page
-- KEYS[7]  the number of a PermitSemaphore without fairness, or another lock
-- ARGV[1]  number of the operation
-- ARGV[2]  waiter lease, ms
-- ARGV[3]  prefix of the channels of clients with waiters
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  channel of waiters that need more permits than exist
-- Reply    1  deleted
--          0  there was none
-- Caller   Delete of a PermitSemaphore WithFairness
-- Twice    A second run finds the record of the first, and replies the same.

-- include permitqueue
-- include record
local record, other = KEYS[6], KEYS[7]
local number, channels, how, more = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local what = recorded(record, number)
if what then
  return what == 'deleted' and 1 or 0
elseif redis.call('exists', other) == 1 then
  return redis.error_reply('FOREIGN another type of this name is in use')
elseif redis.call('exists', state) == 0 then
  note(record, number, 'unset')
  return 0
end
note(record, number, 'deleted')
local reply = done(record, redis.pcall('del', state, ends))
if type(reply) == 'table' then
  return reply
end
announce(how, more, '0')
for _, id in ipairs(redis.call('zrange', queue, 0, FAR - 1)) do
  call(channels, how, id)
end
return told(1)
