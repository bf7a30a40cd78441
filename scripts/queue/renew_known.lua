-- queue/renew_known: queue/renew for a hold that others may adopt: see lock/renew_known.
--
-- KEYS[1..2]  see shared/queuekeys.lua
-- KEYS[3]  tombstone of the hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms; 0: only look
-- ARGV[3]  'exclusive' or 'shared'
-- Reply    as queue/renew; and
--          -2 there is no such hold, since another client has adopted it
-- Caller   the watchdog, Extend, Unlock
-- Twice    As queue/renew.
-- Memory   As queue/renew.
-- Replica  As queue/renew.

-- include queue
-- include adoption
local id, lease, mode = ARGV[1], tonumber(ARGV[2]), ARGV[3]
redis.call('hdel', holders, '')
if not held(mode, id) then
  return wasAdopted(KEYS[3]) and -2 or -others(mode, id)
end
prolong(mode == 'exclusive' and mode or id, lease)
return 1
