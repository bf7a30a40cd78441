-- election/candidates: who waits to lead an Election, in order.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- Reply    their hold ids: those that count as alive
-- Caller   Candidates
-- Twice    Reads only.

-- include queuekeys
local ids = redis.call('zrange', alone, 0, -1)
local reply = {}
for _, id in ipairs(ids) do
  if tonumber(redis.call('zscore', alive, id) or 0) >= now then
    table.insert(reply, id)
  end
end
return reply
