-- places/inspect: one consistent view of a DoubleBarrier.
--
-- KEYS[1..2]  see shared/places.lua
-- Reply    see lock/inspect; the token is 0. Without a generation all are waiters
-- Caller   State, Watch
-- Twice    Reads only.

-- include places
local holds = redis.call('zrangebyscore', places, string.format('%.0f', now), '+inf')
if not generation() then
  return {0, 0, #holds}
end
local reply = {last(), 0, 0}
for _, id in ipairs(holds) do
  table.insert(reply, id)
  table.insert(reply, '1')
  table.insert(reply, 'shared')
end
return reply
