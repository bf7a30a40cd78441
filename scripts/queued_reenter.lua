-- queued_reenter: raise the count of a hold that its owner has.
--
-- KEYS[1], KEYS[2]  see queued
-- ARGV[1]  stay id
-- ARGV[2]  'exclusive' or 'shared'
-- ARGV[3]  lease, ms
-- ARGV[4]  entries wanted
-- Reply    {1, 0}     held
--          {-2, 0|1}  the hold is gone (1: others hold the lock)
-- Caller   Lock and TryLock, by the owner of a hold
-- Twice    The count is absolute, and no hold is made here.
-- Replica  "Gone" must come from a master: a demoted one, whose data may be old,
--          refuses the HDEL with READONLY.

-- include signs
-- include queued
local stay, mode = ARGV[1], ARGV[2]
local exclusive = mode == 'exclusive'
if not held(mode, stay) then
  redis.call('hdel', holders, '')
  return {-2, others(mode, stay)}
end
redis.call('hset', holders, exclusive and 'count' or stay, ARGV[4])
lengthen(exclusive and mode or stay, tonumber(ARGV[3]))
return {1, 0}
