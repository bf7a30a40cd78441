-- permits: the state of a PermitSemaphore, which Redisson shares, and what its scripts have
-- in common. A hold of n permits has n ids of 16 bytes: a base of 14, which it has alone,
-- and a number from 0 in the last two. Redisson draws its ids at random.
--
-- KEYS[1]  free: how many permits are free, maybe negative; absent: no number is set
-- KEYS[2]  held: zset, id of a permit -> epoch ms from which it has expired, or NEVER
-- ARGV[1]  channel
-- ARGV[2]  'publish', 'spublish', 'both' or 'none'
--
-- Defines  free, held: these keys; now: the time in ms; NEVER; tell(n), give(n),
--          reclaim(most), rest(at), found(base, n), remove(ids), put(base, n, at),
--          giveBack(ids)
-- include time
-- include publish
local free, held = KEYS[1], KEYS[2]
local now = math.floor(micros() / 1000)

-- NEVER is the end of a permit of Redisson's that does not expire.
local NEVER = 922337203685477

-- MOST is how many ids one command gets.
local MOST = 1000

-- tell wakes waiters, and returns how many connections are subscribed. Redisson wakes as many threads
-- as the number says, and fails at a negative one.
local function tell(n)
  if n > 0 then
    return announce(ARGV[2], ARGV[1], n)
  end
  return 0
end

-- give adds n permits to the free ones, and returns how many these are now.
local function give(n)
  return redis.call('incrby', free, n)
end

-- each calls f with parts of a list that fit into one command.
local function each(list, size, f)
  for i = 1, #list, size do
    f(unpack(list, i, math.min(i + size - 1, #list)))
  end
end

-- remove removes permits from the held ones, and returns how many were there.
local function remove(ids)
  local n = 0
  each(ids, MOST, function(...)
    n = n + redis.call('zrem', held, ...)
  end)
  return n
end

-- reclaim frees expired permits: all, or at most a number of them.
local function reclaim(most)
  local n
  if most then
    n = remove(redis.call('zrangebyscore', held, 0, now, 'limit', 0, most))
  else
    n = redis.call('zremrangebyscore', held, 0, now)
  end
  if n > 0 then
    tell(give(n))
  end
end

-- rest returns for how long a permit that expires at a time is held, ms; -1 for ever.
local function rest(at)
  return at == NEVER and -1 or at - now
end

local function idsOf(base, n)
  local ids = {}
  for i = 0, n - 1 do
    ids[i + 1] = base .. string.char(math.floor(i / 256), i % 256)
  end
  return ids
end

-- found returns which permits of a hold are held, and when the first of them expires.
local function found(base, n)
  local ids, there, first, at = idsOf(base, n), {}, NEVER, 0
  each(ids, MOST, function(...)
    for _, score in ipairs(redis.call('zmscore', held, ...)) do
      at = at + 1
      if score then
        table.insert(there, ids[at])
        first = math.min(first, tonumber(score))
      end
    end
  end)
  return there, first
end

-- put makes the permits of a hold expire at a time.
local function put(base, n, at)
  local pairs = {}
  for _, id in ipairs(idsOf(base, n)) do
    table.insert(pairs, at)
    table.insert(pairs, id)
  end
  each(pairs, 2 * MOST, function(...)
    redis.call('zadd', held, ...)
  end)
end

-- giveBack frees held permits. Like Redisson it publishes how many permits are free now, or how many were freed if these
-- are several. It returns how many connections got the message.
local function giveBack(ids)
  local n = remove(ids)
  if n == 0 then
    return 0
  end
  local all = give(n)
  return tell(#ids > 1 and all > 0 and n or all)
end
