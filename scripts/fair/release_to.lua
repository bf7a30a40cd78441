-- fair/release_to: end a hold, and make a waiter of its client the holder in the same step,
-- if it is the head of the line.
--
-- KEYS[1..5]  see shared/linekeys.lua
-- KEYS[6]  fencing clock of the lock's slot
-- KEYS[7]  tombstone of the waiter's hold
-- ARGV[1]  hold id
-- ARGV[2]  id of the waiter; '': there is none
-- ARGV[3]  its lease, ms
-- ARGV[4]  waiter lease, ms
-- ARGV[5]  prefix of the waiters' channels
-- ARGV[6]  'publish', 'spublish', 'both' or 'none'
-- ARGV[7], ...  see queue/release_to
-- Reply    see queue/release_to
-- Caller   Unlock
-- Twice    See queue/release_to. A second run replies another token, which is higher.
-- Memory   Redis never refuses the HDEL, and it lets the writes after it pass on a server at
--          its memory limit.
-- Replica  "Not there" must come from a master: see lock/release.

-- include token
-- include linekeys
-- include signs
local tokens, tombstone = KEYS[6], KEYS[7]
local id, waiter, lease, term = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channels, how = ARGV[5], ARGV[6]

-- The ids at the end of ARGV: of those who may follow, and of those who have followed.
local FOLLOW = 8
local most = tonumber(ARGV[7])
local LEFT = FOLLOW + most
local left = #ARGV - LEFT + 1

-- same returns how many elements of the line, from one on, are the ids in ARGV from another on.
local function same(line, i, a, most)
  local n = 0
  while n < most and line[i + n] == ARGV[a + n] do
    n = n + 1
  end
  return n
end

local holds = redis.call('hdel', lock, id) == 1
local line = redis.call('lrange', queue, '0', left + most > 0 and left + most + 1 or '1')
local began = line[1] or false -- the head as the script began
local ahead = left -- so many of those who have left stand in front still
if same(line, 1, LEFT, left) < left then
  -- Some of them were removed before.
  for i = LEFT, #ARGV do
    redis.call('lrem', queue, 1, ARGV[i])
  end
  ahead, line = 0, redis.call('lrange', queue, 0, most + 1)
end
local granted
if holds and line[ahead + 1] == waiter and redis.call('exists', tombstone) == 0 then
  local n = same(line, ahead + 2, FOLLOW, most)
  local token, last = drawToken(tokens, clock, digits)
  n = last and math.min(n, token - last - 1) or 0 -- theirs are those below: see lock/enter
  token = token - n
  redis.call('lpop', queue, ahead > 0 and ahead + 1 or '1')
  redis.call('zrem', deadlines, waiter, unpack(ARGV, LEFT))
  redis.call('hdel', notes, waiter, unpack(ARGV, LEFT))
  redis.call('hset', lock, waiter, '1')
  redis.call('pexpire', lock, lease)
  granted = n > 0 and {token, n} or token
  -- Most often nobody's sign of life has expired, so nobody is removed; and whoever is the head
  -- now need not be told, as it looks before the lease ends, or follows.
  if (n > 0 or tonumber(lease) >= term / 3) and not expired(alive, nowText) then
    unsign(alive, notes, waiter, unpack(ARGV, LEFT))
    return granted
  end
end

-- include line
-- include ttl
first = began
if granted then
  sweep(waiter, term)
  unsign(alive, notes, waiter, unpack(ARGV, LEFT))
  tell(waiter, term, channels, how, type(granted) == 'table' and -1 or tonumber(lease)) -- who follows need not look
  return told(granted)
end
if left > 0 then
  if ahead > 0 then
    redis.call('lpop', queue, ahead)
    begin()
  end
  forget(unpack(ARGV, LEFT))
end
if not holds and redis.call('hexists', lock, waiter) == 1 then
  local token = drawToken(tokens, clock)
  lengthen(lock, tonumber(lease))
  return -token
end
sweep('', term)
tell('', term, channels, how, holds and -2)
return told(holds and 1 or -redis.call('exists', lock))
