-- lock/release_next: end a hold, and make the waiter of another client that stands by the
-- holder in the same step. If there is none, this is lock/release.
--
-- KEYS[1]  lock hash
-- KEYS[2]  the waiter that stands by: see lock/stand_by
-- KEYS[3]  Redisson's counter of this lock; absent if tokens come from the fencing clock
-- ARGV[1]  hold id
-- ARGV[2]  its token
-- ARGV[3]  channel
-- ARGV[4]  'publish'
-- ARGV[5]  prefix of the channels of clients whose waiters stand by
-- ARGV[6]  number of consecutive releases with a grant, including this one
-- Reply    as lock/release
-- Caller   Unlock
-- Twice    Only the run that ends the hold makes a waiter the holder, so a late copy does
--          nothing.
-- Memory   At its memory limit Redis never refuses HDEL, and the other writes only as the
--          first of a script.
-- Replica  "Not there" must come from a master: see lock/release.
--
-- A waiter gets the lock only if this server has a subscriber of its client's channel, so not if
-- the client has died and its connection was closed. The message is
-- '<hold id> <token> <n> <ARGV[6]> <poll>'. The token was drawn when the waiter stood by. If it is
-- above the token of the hold that ends, it is above all tokens given out before; otherwise that hold
-- began after the waiter stood by. The release is published for all others too: one of them stands
-- by next, and watches get a message.

-- include publish
local lock, standing, counter = KEYS[1], KEYS[2], KEYS[3]
local id, last, channel, how, turns, row = unpack(ARGV)

-- grant makes the waiter that stands by the holder, if its token and its subscription permit it.
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
