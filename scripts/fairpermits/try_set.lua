-- fairpermits/try_set: set how many permits a PermitSemaphore WithFairness has, unless it was
-- done before.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of the page
-- KEYS[7]  the number of a PermitSemaphore without fairness, or another lock
-- KEYS[8]  see shared/setting.lua
-- ARGV[1]  number of the operation
-- ARGV[2]  permits
-- Reply    1  set
--          0  they were set before
-- Caller   TrySetPermits
-- Twice    A second run finds the record of the first, and replies the same.

-- include permitqueue
-- include record
-- include setting
local record, other, latest, number = KEYS[6], KEYS[7], KEYS[8], ARGV[1]
local what = recorded(record, number)
if what then
  return what == 'set' and 1 or 0
elseif redis.call('exists', other) == 1 then
  return redis.error_reply('FOREIGN another type of this name is in use')
elseif redis.call('hexists', state, 'total') == 1 then
  note(record, number, 'unset')
  return 0
end
note(record, number, 'set')
local reply = done(record, redis.pcall('hset', state, 'total', ARGV[2], 'free', ARGV[2]))
if type(reply) == 'table' then
  return reply
end
setting(latest, record, number)
return 1
