-- adoption/give_back: undo an adoption, no matter whether its requests ran: the hold is offered again. It stays in the lock
-- under the new id.
--
-- KEYS[1]  hash of the lock
-- KEYS[2]  tombstone of the detached hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new id
-- ARGV[1]  new id
-- ARGV[2]  lease that the adoption has given the hold, ms
-- ARGV[3]  time to keep the tombstones after the hold, ms
-- Reply    n > 0  the hold is offered again, and without the adoption would last for n ms more
--          0      the hold was not adopted under this id
--          -1     the time of the hold is over, or its offer is gone: it is not offered
-- Caller   an Adopt that was given up. Then it renews the hold for n ms, or ends it: a lease that was
--          longer than the adoption's lease gets its length back
-- Twice    A second copy has the same reply, until another client adopts the hold.
-- Memory   The HDEL, of a field that cannot exist, lets the SET pass on a server at its memory limit.
-- Foreign  The tombstone is set even if other data is at the key of the lock, which may be gone
--          when a late copy comes.

-- include adoption
local id, lease, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
redis.pcall('hdel', KEYS[1], '')
redis.call('set', KEYS[3], 1, 'px', lease + keep)
local by, hash, token, till = offer(KEYS[2])
if not by then
  return -1
elseif by ~= id or till == '0' then
  return 0
end
local rest = till - serverMillis()
local over = rest <= 0
put(KEYS[2], id, hash, token, till, over and '1' or '0', math.max(rest, lease) + keep)
return over and -1 or rest
