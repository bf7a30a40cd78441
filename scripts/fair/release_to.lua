-- fair/release_to: end a hold, and make a waiter of its client the holder in the same step,
-- if it is the head of the line.
--
-- KEYS[1..5]  see shared/line.lua
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

-- include ttl
-- include token
-- include line
local tokens, tombstone = KEYS[6], KEYS[7]
local id, waiter, lease, term = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
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
local line = left + most > 0 and begin(math.max(left, most))
if left > 0 then
  -- They stand in front, unless they were removed.
  if same(line, 1, LEFT, left) == left then
    redis.call('lpop', queue, left)
    forget(unpack(ARGV, LEFT))
  else
    for i = LEFT, #ARGV do
      leave(ARGV[i])
    end
  end
  line = begin(most)
end
if holds and head == waiter and redis.call('exists', tombstone) == 0 then
  local n = most > 0 and same(line, 2, FOLLOW, most) or 0
  local token, last = drawToken(tokens, clock, digits)
  n = last and math.min(n, token - last - 1) or 0 -- theirs are those below: see lock/enter
  token = token - n
  sweep(waiter, term)
  pop()
  redis.call('hset', lock, waiter, 1)
  redis.call('pexpire', lock, lease)
  tell(waiter, term, channels, how, n > 0 and -1 or lease) -- who follows need not look
  return told(n > 0 and {token, n} or token)
end
if not holds and redis.call('hexists', lock, waiter) == 1 then
  local token = drawToken(tokens, clock)
  lengthen(lock, lease)
  return -token
end
sweep('', term)
tell('', term, channels, how, holds and -2)
return told(holds and 1 or -redis.call('exists', lock))
