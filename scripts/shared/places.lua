-- places: the state of a DoubleBarrier, and what its scripts have in common. A generation begins when all places are
-- taken, and ends when all places have been left or are over. In between no member can enter.
--
-- KEYS[1]  state: hash, members -> how many places there are; while a generation lasts
--          also generation -> its token. It exists as long as there is a place
-- KEYS[2]  places: zset, hold id -> the server ms in which the place is over
--
-- Defines  state, places; clock, now: the time in µs and ms; generation(), place(id),
--          held(id), others(), prolong(id, ms), last(), settle(channel, how)
-- include time
-- include ttl
-- include publish
local state, places = KEYS[1], KEYS[2]
local clock = micros()
local now = math.floor(clock / 1000)

local function generation()
  return redis.call('hget', state, 'generation')
end

-- place reports whether a place is taken. A place ends when its last ms is over, like a key.
local function place(id)
  local at = redis.call('zscore', places, id)
  return at and tonumber(at) >= now
end

local function held(id)
  return place(id) and generation() and true
end

-- others returns 1 if the barrier has members in it.
local function others()
  return generation() and redis.call('zcount', places, string.format('%.0f', now), '+inf') > 0 and 1 or 0
end

-- prolong makes a place last for at least ms from now.
local function prolong(id, ms)
  local at = redis.call('zscore', places, id)
  if not at or tonumber(at) < now + ms then
    redis.call('zadd', places, now + ms, id)
  end
  lengthen(places, ms)
  lengthen(state, ms)
end

-- last returns when the last place is over, in ms from now.
local function last()
  return (redis.call('zrevrange', places, 0, 0, 'withscores')[2] or now) - now
end

-- settle removes places that are over. If no place is left, the generation has ended: settle publishes that to members that
-- wait to leave, and to members that wait for the next generation.
local function settle(channel, how)
  redis.call('zremrangebyscore', places, '-inf', string.format('(%.0f', now))
  if redis.call('exists', places) == 0 and redis.call('exists', state) == 1 then
    local ended = generation()
    redis.call('del', state)
    if ended then
      announce(how, channel, '0')
    end
  end
end
