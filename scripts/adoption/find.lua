-- adoption/find: find an offered hold, and keep the offer for the time of a lease. A late copy of the request that gives
-- an adoption back does not end the hold within that time.
--
-- KEYS[1]  hash of the lock
-- KEYS[2]  tombstone of the detached hold: see shared/adoption.lua
-- ARGV[1]  secret
-- ARGV[2]  lease, ms
-- ARGV[3]  time to keep the tombstone after it, ms
-- Reply    the id of the hold in the lock; '' if no hold is offered for this secret
-- Caller   Extend and Unlock of a handle, which renew or end the hold next: if it is adopted meanwhile, they do not find it
-- Twice    As once.
-- Replica  A demoted master, whose data may be old, refuses the HDEL, of a field that cannot exist.

-- include ttl
-- include adoption
redis.call('hdel', KEYS[1], '')
local by, hash, token, till, taken = offer(KEYS[2])
if hash ~= redis.sha1hex(ARGV[1]) or taken == '1' then
  return ''
end
local lease, keep = tonumber(ARGV[2]), tonumber(ARGV[3])
if till ~= '0' then
  put(KEYS[2], by, hash, token, math.max(till, serverMillis() + lease), '0', redis.call('pttl', KEYS[2]))
end
lengthen(KEYS[2], lease + keep)
return by
