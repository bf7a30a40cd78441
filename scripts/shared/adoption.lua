-- adoption: how a hold that its holder has detached passes to another client, under a new id.
-- The tombstone of the detached hold is the offer:
--   '<id> <hash> <token> <until> <taken>'
-- Anyone who has the secret with this hash may adopt the hold, whose fencing token this is. It is
-- in the lock under the id of the detached hold, or of the latest adoption. taken is 1 from an
-- adoption on, and 0 again if that is given up. until is 0, or the ms of the server at which the hold
-- would have ended without the latest adoption, or to which it was extended since. Any other tombstone
-- offers nothing.
--
-- So the id that the lock has and the offer change in one script, and one of two who adopt finds the
-- offer taken. An id of which adoption/give_back has left a tombstone adopts nothing any more.
--
-- Defines  serverMillis(), offer(tombstone), put(tombstone, id, hash, token, till, taken, ttl),
--          offered(tombstone, id, secret), take(tombstone, id, rest, keep)
-- include time

local function serverMillis()
  return math.floor(micros() / 1000)
end

-- offer returns the five parts of the offer, or nil.
local function offer(tombstone)
  return (redis.call('get', tombstone) or ''):match('^(%S+) (%x+) (%d+) (%d+) ([01])$')
end

-- put writes the five parts of the offer.
local function put(tombstone, id, hash, token, till, taken, ttl)
  redis.call('set', tombstone, string.format('%s %s %s %.0f %s', id, hash, token, tonumber(till), taken), 'px', string.format('%.0f', ttl))
end

-- offered returns under which id the hold is in the lock that a new id may adopt, or has adopted
-- already, and the token; nil: nothing is offered to who has this secret.
local function offered(tombstone, id, secret)
  local by, hash, token, _, taken = offer(tombstone)
  if hash == redis.sha1hex(secret) and (taken == '0' or by == id) then
    return by, token
  end
end

-- take notes that the hold, which was to last for rest ms more, is in the lock under a new id.
local function take(tombstone, id, rest, keep)
  local _, hash, token = offer(tombstone)
  put(tombstone, id, hash, token, serverMillis() + rest, '1', keep + rest)
end
