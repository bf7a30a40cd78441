-- rw/write_renew_known: rw/write_renew for a hold that others may adopt: see lock/renew_known.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the write hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only look
-- Reply    as rw/write_renew; and
--          -2 there is no such hold, since another client has adopted it
-- Caller   the watchdog, Extend, Unlock
-- Twice    As rw/write_renew.
-- Replica  As rw/write_renew.

-- include ttl
-- include sides
-- include adoption
local lock, id, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('hexists', lock, id .. ':write') == 0 then
  local reply = absent(lock, id)
  return wasAdopted(KEYS[2]) and -2 or reply
end
lengthen(lock, lease)
return 1
