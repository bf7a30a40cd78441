-- lock/renew_known: lock/renew for a hold that others may adopt, since its holder has made its
-- handle known.
--
-- KEYS[1]  lock hash
-- KEYS[2]  tombstone of the hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only look
-- Reply    as lock/renew; and
--          -2 there is no such hold, since another client has adopted it
-- Caller   the watchdog, Extend, Unlock
-- Twice    As lock/renew.
-- Replica  As lock/renew.

-- include renewal
-- include adoption
local reply = renewed(KEYS[1], ARGV[1], tonumber(ARGV[2]))
return reply ~= 1 and wasAdopted(KEYS[2]) and -2 or reply
