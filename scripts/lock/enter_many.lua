-- lock/enter_many: take several locks for as many holds, each as lock/enter does.
--
-- KEYS[1], KEYS[2], KEYS[3], ...  for each the keys of lock/enter
-- ARGV[1], ARGV[2], ARGV[3], ...  for each the arguments of lock/enter
-- Reply    for each the reply of lock/enter, or nil: nothing was done for it, and it has to
--          be requested alone by lock/enter
-- Caller   Lock, TryLock of many callers
-- Twice    As lock/enter: the reply for a copy is nil, and lock/enter handles it.
-- Memory   As lock/enter: if the server refuses the first token, it refuses all.
-- Replica  As lock/enter: nil for a lock that is free.

-- include time
-- include token
-- include hash

local now, digits = micros()
local windows = {} -- by clock: its tokens for this script, those above at up to top

-- draw returns the token of a hold, and how many of the next tokens belong to its client too. All holds share
-- the tokens by which the clock has moved since its last one, if these are enough: see shared/take.
local function draw(i)
  local tokens = KEYS[i + 2]
  local w = windows[tokens]
  if not w then
    local top, last = drawToken(tokens, now, digits)
    local wanted = 0
    for j = i, #KEYS, 3 do
      wanted = wanted + (KEYS[j + 2] == tokens and ARGV[j + 2] + 1 or 0)
    end
    w = {top = top, at = math.max(last or top - 1, top - wanted)}
    windows[tokens] = w
  end
  local share = math.floor((w.top - w.at) / ((#KEYS - i + 1) / 3))
  local token, n = w.at + 1, math.max(0, math.min(tonumber(ARGV[i + 2]), share - 1))
  w.at = token + n
  return token, n
end

-- enter takes one lock, or returns who holds it.
local function enter(i)
  local lock, tombstone, id, lease, source = KEYS[i], KEYS[i + 1], ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('exists', lock, tombstone) == 0 then
    local token, n = nil, 0
    if source == 'counter' then
      token = redis.call('incr', KEYS[i + 2])
    else
      token, n = draw(i)
    end
    redis.call('hset', lock, id, '1')
    redis.call('pexpire', lock, lease)
    if n > 0 then
      return {1, token, n}
    end
    return token
  end
  if redis.call('exists', tombstone) == 1 or redis.call('hexists', lock, id) == 1 then
    return false
  end
  local reply = refused(lock, redis.call('pttl', lock))
  return not reply.err and reply
end

local replies = {}
for i = 1, #KEYS, 3 do
  local ok, reply = pcall(enter, i)
  replies[(i + 2) / 3] = ok and reply
end
for tokens, w in pairs(windows) do
  if w.at > w.top then
    redis.call('set', tokens, w.at)
  end
end
return replies
