-- permits/release: give back the permits of a hold.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- ARGV[3]  base of the hold's permits
-- ARGV[4]  how many it has
-- Reply    1  given back
--          0  some were gone or had expired. The others are given back
--          {1|0, n}  n, as text: how many connections got the message
-- Caller   Unlock, Shutdown
-- Twice    The ids are gone after the first run and are never used again.
-- Memory   A ZREM comes first: it is allowed at the memory limit, and lets INCRBY pass.
-- Replica  "Not all were there" must come from a master: see lock/release.

-- include permits
local base, n = ARGV[3], tonumber(ARGV[4])
if n > 1 then
  reclaim() -- as Redisson does: it gives back several only if none of them has expired
end
local there, first = found(base, n)
if #there == 0 then
  redis.call('zrem', held, '')
end
local heard = giveBack(there)
local reply = #there == n and first > now and 1 or 0
if heard > 0 and not unpublished then
  return {reply, tostring(heard)}
end
return told(reply)
