-- rw/read_renew_known: rw/read_renew for a hold that others may adopt: see lock/renew_known.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the read hold: see shared/adoption.lua
-- KEYS[3]  timer of the first entry
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: see rw/read_renew
-- ARGV[3]  prefix of the timers' names
-- Reply    as rw/read_renew; and
--          -2 there is no such hold, since another client has adopted it
-- Caller   the watchdog, Extend, Unlock
-- Twice    As rw/read_renew.
-- Replica  As rw/read_renew.

-- include reading
-- include adoption
local reply = readerRenewed(KEYS[1], KEYS[3], ARGV[1], tonumber(ARGV[2]), ARGV[3])
return reply ~= 1 and wasAdopted(KEYS[2]) and -2 or reply
