-- lock/enter: take a free lock.
--
-- KEYS[1]  lock hash: hold id -> its entries
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  source of tokens: see ARGV[3]
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  'counter': KEYS[3] is Redisson's counter of this lock; otherwise it is the
--          fencing clock of the lock, and ARGV[3] how many more tokens to draw,
--          for a client that hands the hold over
-- Reply    token      held
--          {1, token, n}  held; the next n tokens belong to the client too
--          {0, pttl, holder, others}  held by others for pttl ms (-1: no TTL);
--                      see shared/hash.lua
--          {-1, 0}     this hold was abandoned: a late copy, nothing done
--          {-3, ms}    see shared/quarantine.lua
-- Caller   Lock, TryLock
-- Twice    A second run finds the hold under its own id and changes only the clock. It
--          replies a higher token. The client uses the token of one reply only. The
--          counter is not raised again. A copy that comes after the hold has ended finds
--          its tombstone, which the client leaves if a copy may be under way.
-- Memory   The token is written first: at its memory limit the server refuses it, and
--          with it the whole acquire.

-- include quarantine when served
-- include time
-- include token
local lock, tombstone, tokens = KEYS[1], KEYS[2], KEYS[3]
local id, lease, source = ARGV[1], ARGV[2], ARGV[3]
if redis.call('exists', lock, tombstone) == 0 then
  -- The usual case ends here, with as few commands as possible.
  local token, last
  if source == 'counter' then
    token = redis.call('incr', tokens)
  else
    token, last = drawToken(tokens, micros())
  end
  redis.call('hset', lock, id, '1')
  redis.call('pexpire', lock, lease)
  if source ~= '0' and last then
    -- Take the free tokens below, down to the last one given: so the clock does not run ahead of the time,
    -- which replaces it if its key is lost.
    local n = math.min(tonumber(source), token - last - 1)
    return {1, token - n, n}
  end
  return token
end

-- include ttl
-- include hash
if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
if redis.call('hexists', lock, id) == 0 then
  return refused(lock, redis.call('pttl', lock))
end
-- The hold exists: this is a copy. The token is drawn first: see Memory.
local token
if source == 'counter' then
  -- While the hold lasts, the value of the counter is its token.
  token = tonumber(redis.call('get', tokens))
else
  token = drawToken(tokens, micros())
end
lengthen(lock, tonumber(lease))
return token
