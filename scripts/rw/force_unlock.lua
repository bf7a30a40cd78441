-- rw/force_unlock: end the holds of one side, or only a given hold.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2], KEYS[3]  waiting readers, and readers that go before writers: see
--          shared/turns.lua; absent if readers are preferred
-- ARGV[1]  id of the hold to end, or '' for any
-- ARGV[2]  side: 'read' or 'write'
-- ARGV[3]  prefix of the timers' names
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  ended
--          0  was not held on this side (by that hold)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With a hold id: the hold is gone, nothing happens. Without one a copy would
--          end a newer hold, which is why this request is sent only once.
-- Replica  "Not held" must come from a master: see lock/release.
--
-- Without a hold id it works like Redisson's: it frees a lock that is in the mode of this side. The read holds of
-- a writer end with its write hold.

-- include leave
-- include whole
local lock, readers, admitted = KEYS[1], KEYS[2], KEYS[3]
local id, side, timers, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local fields, reply = freeable(lock, true)
if reply then
  return reply
end
if names(id) then -- a caller may pass any text
  local was = redis.call('hget', lock, side == 'read' and id or id .. ':write')
  if was and side == 'read' then
    return told(readerLeaves(lock, timers, id, was, channel, how))
  elseif was then
    return told(writerLeaves(lock, readers, admitted, timers, id, channel, how))
  end
end
redis.call('hdel', lock, '') -- a demoted master refuses: its data may be old
if id ~= '' or redis.call('hget', lock, 'mode') ~= side then
  return 0
end
redis.call('del', lock)
for i = 1, #fields, 2 do
  for n = 1, tonumber(fields[i + 1]) or 0 do
    drop(timers, fields[i], n)
  end
end
if side == 'write' then
  admit(readers, admitted)
end
announce(how, channel, side == 'read' and '0' or '1')
return told(1)
