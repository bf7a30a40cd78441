-- permits/force_unlock: give back the permits of a hold, or all that are held.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- ARGV[3]  base of the hold's permits, or '' for all
-- Reply    1  given back
--          0  none were held
-- Caller   an operator
-- Twice    With a hold: its ids are gone. Without one a copy would end newer holds, which
--          is why that request is sent only once.
-- Replica  A demoted master refuses ZREMRANGEBYSCORE: see lock/release.

-- include permits
local base = ARGV[3]
reclaim()
local ids = {}
for _, id in ipairs(redis.call('zrange', held, 0, -1)) do
  if base == '' or id:sub(1, #base) == base then
    table.insert(ids, id)
  end
end
giveBack(ids)
return told(#ids > 0 and 1 or 0)
