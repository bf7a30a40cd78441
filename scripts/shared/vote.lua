-- vote: the vote of a node of a RedLock. The record of a hold has a field that says until
-- when it is valid. A TTL would not do: a key that Redis deletes because its clock has
-- jumped ahead does not come back when the clock is set right. The TTL of the record only
-- cleans up after a crashed holder. It is so long that a clock that is hours or days ahead
-- for a while does no harm.
--
-- record   hash: attempt -> hold id, stamp -> stamp of the vote, until -> server µs, token
--
-- Defines  voted(record, now), left(vote, now), age(stamp, now). now is in µs, and vote is what
--          voted returned

-- voted reads the record: {hold id, until, stamp, token}. It also returns the id of the hold
-- that has the node's vote at that time, or false.
local function voted(record, now)
  local vote = redis.call('hmget', record, 'attempt', 'until', 'stamp', 'token')
  vote[2] = tonumber(vote[2] or 0)
  return vote, vote[2] > now and vote[1]
end

-- left returns for how many ms the hold has the vote.
local function left(vote, now)
  return math.ceil((vote[2] - now) / 1000)
end

-- age returns for how many µs the vote with a stamp has lasted.
local function age(stamp, now)
  return now - tonumber(string.match(stamp, '%d+$'))
end
