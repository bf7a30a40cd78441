-- rw/read_give_back: undo an adoption of a read hold, whatever became of its requests.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- KEYS[2]  tombstone of the read hold: see shared/adoption.lua
-- KEYS[3]  tombstone of the new one
-- KEYS[4]  timer of the first entry of the hold
-- KEYS[5]  timer of the first entry of the new one
-- ARGV[1]  new id
-- ARGV[2]  id of the hold
-- ARGV[3]  time to keep the tombstone of the new one, ms
-- Reply    1  as lock/give_back; rw/read_abandon ends what may remain
-- Caller   an Adopt that was given up
-- Twice    As lock/give_back. Of several entries only the first has a timer again, which is
--          the one that counts for a hold of ours.
-- Memory   As lock/give_back.

-- include adoption
local lock, tombstone, own, first, timer1 = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, old, keep = ARGV[1], ARGV[2], ARGV[3]
redis.call('hdel', lock, '')
withdrawn(own, keep)
if redis.call('hexists', lock, id) == 1 then
  local rest, entries = undone(tombstone, id)
  if rest > 0 then
    redis.call('set', first, 1, 'px', rest)
    redis.call('hset', lock, old, entries)
    redis.call('hdel', lock, id)
    redis.call('del', timer1)
    if redis.call('hlen', lock) == 2 then -- it reads alone; otherwise the last to leave sees to that
      redis.call('pexpire', lock, rest)
    end
  end
end
return 1
