-- lock/release_next: end a hold, and make the waiter of another client that stands by the
-- holder in the same step. If there is none, this is lock/release.
--
-- KEYS[1]  lock hash
-- KEYS[2]  who stands by: see lock/stand_by
-- KEYS[3]  Redisson's counter of this lock; absent if tokens come from the fencing clock
-- ARGV[1]  hold id
-- ARGV[2]  its token
-- ARGV[3]  channel
-- ARGV[4]  'publish'
-- ARGV[5]  prefix of the channels of clients whose waiters stand by
-- ARGV[6]  how many holders in a row have become so by a release, with this one
-- Reply    as lock/release
-- Caller   Unlock
-- Twice    Only the run that ends the hold makes a waiter the holder, so a late copy does
--          nothing.
-- Memory   At its memory limit Redis never refuses HDEL, and the other writes only as the
--          first of a script.
-- Replica  "Not there" must come from a master: see lock/release.
--
-- Only a client that listens on its channel, as this server knows, gets the lock for its
-- waiter: one that has died since, and whose connection was closed, does not. The message says
-- '<hold id> <token> <n> <ARGV[6]> <look>'. The token was drawn when the waiter stood by. It is
-- above all that were given out before if it is above the token of the hold that ends; otherwise
-- somebody was quicker than the waiter. All others are told of the release too: one of them stands
-- by next, and who watches the lock sees it.

-- include publish
local lock, standing, counter = KEYS[1], KEYS[2], KEYS[3]
local id, last, channel, how, turns, row = unpack(ARGV)

-- grant makes the waiter that stands by the holder, if it can be.
local function grant(waiter, client, lease, token, n, look)
  if not waiter or (token == 'counter') ~= (counter ~= nil) then
    return -- it waits for a FencedLock of the name, or this is one: its tokens are others
  elseif not counter and tonumber(token) <= tonumber(last) then
    return
  end
  local turn = turns .. client
  if (redis.pcall('pubsub', 'numsub', turn)[2] or 0) == 0 then
    return
  end
  if counter then
    token = redis.pcall('incr', counter)
    if type(token) == 'table' then
      return -- it is no number
    end
  end
  redis.call('hset', lock, waiter, '1')
  redis.call('pexpire', lock, lease)
  local told = redis.pcall(how, turn, table.concat({waiter, token, n, row, look}, ' '))
  if type(told) == 'table' then
    redis.call('hdel', lock, waiter) -- the user of Redis may not publish there
  end
end

if redis.call('hdel', lock, id) == 0 then
  return -redis.call('exists', lock)
end
local who = redis.pcall('getdel', standing)
if type(who) == 'string' and redis.call('exists', lock) == 0 then -- see lock/release
  grant(who:match('^((%S+):%S+) (%d+) (%w+) (%d+) (%d+)$'))
end
return told(1, announce(how, channel, '0'))
