-- adoption/offer: offer a hold to anyone who has a secret. The offer is of no use until the holder gives the secret away,
-- which it does when it knows that the hold exists.
--
-- KEYS[1]  hash of the lock
-- KEYS[2]  tombstone of the hold: see shared/adoption.lua
-- ARGV[1]  hold id
-- ARGV[2]  hash of the secret
-- ARGV[3]  fencing token
-- ARGV[4]  time to keep the tombstone, ms: longer than the lease of the hold
-- Reply    1
-- Caller   Detach, which looks for the hold next
-- Twice    NX: a copy that comes after an adoption changes nothing.
-- Memory   The HDEL, of a field that cannot exist, lets the SET pass on a server at its memory limit.

redis.call('hdel', KEYS[1], '')
redis.call('set', KEYS[2], string.format('%s %s %s 0 0', ARGV[1], ARGV[2], ARGV[3]), 'nx', 'px', ARGV[4])
return 1
