-- election/candidates: the waiting candidates of an Election, in order.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- Reply    the hold ids of the first MOST, without those that count as dead: a queue may be long, and
--          a server does nothing else meanwhile
-- Caller   Candidates
-- Twice    Reads only.

-- include queuekeys
local MOST = 100
local ids = redis.call('zrange', alone, 0, MOST - 1)
local reply = {}
for _, id in ipairs(ids) do
  if tonumber(redis.call('zscore', alive, id) or 0) >= now then
    table.insert(reply, id)
  end
end
return reply
