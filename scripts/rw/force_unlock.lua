-- rw/force_unlock: end the holds of one side, or only a given owner's.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  hold id meant, or '' for any
-- ARGV[2]  side: 'read' or 'write'
-- ARGV[3]  what the names of timers begin with
-- ARGV[4]  channel
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  ended
--          0  was not held on this side (by that owner)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: it is gone, nothing happens. Without: a copy ends
--          the holds of whoever has come since; that is what "force" means,
--          and why this request is sent once only.
--
-- Without an owner it does as Redisson's does: it frees a lock that is in the mode
-- of this side. What a writer reads goes with it.

-- include leave
-- include hash
local lock = KEYS[1]
local id, side, timers, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local fields = redis.call('hgetall', lock)
local reply = foreign(fields)
if reply then
  return reply
end
-- The fields of the hash that are no readers, though somebody may ask for them.
local other = side == 'read' and (id == 'mode' or id:find(':write', 1, true))
if id ~= '' and not other then
  local was = redis.call('hget', lock, side == 'read' and id or id .. ':write')
  if was and side == 'read' then
    return told(readerLeaves(lock, timers, id, was, channel, how))
  elseif was then
    return told(writerLeaves(lock, timers, id, channel, how))
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
  admit(timers)
end
announce(how, channel, side == 'read' and '0' or '1')
return told(1)
