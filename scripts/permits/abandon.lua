-- permits/abandon: end a hold of permits for good, no matter which of its requests ran.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  tombstone of this hold
-- ARGV[3]  base of the hold's permits
-- ARGV[4]  how many permits it requested
-- ARGV[5]  time to keep the tombstone, ms
-- Reply    1 or 0: see permits/release
-- Caller   an abandoned acquire; the release of a hold whose acquire may have copies
--          under way
-- Twice    A second run finds no permits and lengthens the tombstone.
-- Memory   The ZREM lets the SET pass on a server at its memory limit.

-- include permits
local tombstone = KEYS[3]
local base, n, keep = ARGV[3], tonumber(ARGV[4]), ARGV[5]
redis.call('zrem', held, '')
redis.call('set', tombstone, 1, 'px', keep)
local there, first = found(base, n)
giveBack(there)
return told(#there == n and first > now and 1 or 0)
