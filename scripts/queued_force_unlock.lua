-- queued_force_unlock: end all holds of one mode, or only that of a given owner.
-- The queue stays.
--
-- KEYS[1] to KEYS[5]  see queued
-- ARGV[1]  stay id of the holder meant, or '' for any
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  waiter lease, ms
-- ARGV[4]  what the channel of a waiter begins with
-- ARGV[5]  'publish', 'spublish', 'both' or 'none'
-- Reply    1  ended
--          0  there was no such hold
-- Caller   ForceUnlock, ForceUnlockIf
-- Twice    With an owner: its hold is gone, nothing happens. Without: a copy
--          ends whatever hold has been taken since; that is what "force" means,
--          and why this request is sent once only.
-- Replica  "No such hold" must come from a master: a demoted one refuses the
--          HDEL with READONLY.

-- include announce
-- include queued
local owner, mode = ARGV[1], ARGV[2]
redis.call('hdel', holders, '')
reap(tonumber(ARGV[3]))
local reply = 0
for _, hold in ipairs(redis.call('zrange', ends, 0, -1)) do
  local is = hold == 'exclusive' and hold or 'shared'
  if is == mode and (owner == '' or held(mode, owner) and (is == 'exclusive' or hold == owner)) then
    finish(hold)
    reply = 1
  end
end
wake(ARGV[4], ARGV[5])
return reply
