-- places/enter: take a place in a DoubleBarrier, and enter if all are taken.
--
-- KEYS[1..2]  see shared/places.lua
-- KEYS[3]  tombstone of this hold
-- KEYS[4]  fencing clock
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  how long a waiter keeps its place, ms
-- ARGV[4]  '1': wait, that is keep the place until all are taken
-- ARGV[5]  how many members there are
-- ARGV[6]  channel
-- ARGV[7]  'publish', 'spublish', 'both' or 'none'
-- Reply    {1, token}   entered; all of a generation have its token
--          {0, -1, n}   n members are still to come
--          {0, rest, '', n}  n others are in: it waits for the next generation. They are
--                       out within rest ms, unless they prolong that
--          {-1, 0}      this hold was abandoned: a late copy, nothing done
--          {-3, ms}     see shared/quarantine.lua
--          {-6, n}      the barrier has n members for others that are in it now
-- Caller   Enter
-- Twice    A place is taken once. A copy that comes after it was left finds its tombstone,
--          which the client leaves if it knows of a copy that may be under way.
-- Memory   The removal of places that are over comes first and lets the writes after it
--          pass on a server at its memory limit; there are few.

-- include quarantine when served
-- include token
-- include places
local tombstone, tokens = KEYS[3], KEYS[4]
local id, lease, wait, waits = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local members, channel, how = tonumber(ARGV[5]), ARGV[6], ARGV[7]

local function enter()
  local known = redis.call('hget', state, 'members')
  if known and tonumber(known) ~= members then
    return {-6, tonumber(known)}
  end
  local lasts, mine = generation(), place(id)
  if lasts and mine then
    prolong(id, lease)
    return {1, tonumber(lasts)}
  elseif lasts then
    return {0, last(), '', redis.call('zcard', places)}
  end
  local missing = members - redis.call('zcard', places) - (mine and 0 or 1)
  if missing > 0 then
    if waits then
      redis.call('hset', state, 'members', members)
      prolong(id, wait)
    end
    return {0, -1, missing}
  end
  local token = drawToken(tokens, clock)
  redis.call('hset', state, 'members', members, 'generation', token)
  prolong(id, lease)
  lengthen(state, last())
  announce(how, channel, '0')
  return {1, token}
end

if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
settle(channel, how)
return told(enter())
