-- rw_force_unlock: end the holds of one side, or only a given owner's.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id of the holder meant, or '' for any
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  side: 'read' or 'write'
-- Reply    1  ended
--          0  was not held on this side (by that owner)
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: it is gone, nothing happens. Without: a copy ends
--          the holds of whoever has come since; that is what "force" means,
--          and why this request is sent once only.
--
-- Without an owner it does as Redisson's does: it frees a lock that is in the mode
-- of this side. What a writer reads goes with it.

-- include announce
-- include rw
-- include rw_turns
-- include rw_leave
-- include holders
local side, fields = ARGV[5], redis.call('hgetall', lock)
local reply = foreign(fields)
if reply then
  return reply
end
-- The fields of the hash that are no readers, though somebody may ask for them.
local other = side == 'read' and (stay == 'mode' or stay:find(':write', 1, true))
if stay ~= '' and not other then
  local was = redis.call('hget', lock, side == 'read' and stay or writer)
  if was then
    return side == 'read' and readerLeaves(was) or writerLeaves()
  end
end
redis.call('hdel', lock, '') -- a demoted master refuses: its data may be old
if stay ~= '' or redis.call('hget', lock, 'mode') ~= side then
  return 0
end
redis.call('del', lock)
for i = 1, #fields, 2 do
  for n = 1, tonumber(fields[i + 1]) or 0 do
    redis.pcall('del', timer(fields[i], n))
  end
end
if side == 'write' then
  admit()
end
announce(ARGV[4], ARGV[3], side == 'read' and '0' or '1')
return 1
