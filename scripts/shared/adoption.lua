-- adoption: how a hold that its holder has detached passes to another client, under a new id.
-- The tombstone of the detached hold is the offer:
--   '<id> <hash> <token> <until> <taken>'
-- Anyone who has the secret with this hash may adopt the hold. The token is the hold's fencing token, and the id is
-- the hold's current id in the lock: the id of the detached hold, or of the latest adoption. taken is 1 after an
-- adoption, and 0 again if the adoption is given up. until is 0, or the ms of the server at which the hold would have ended without
-- the latest adoption, or to which it was extended since. Any other tombstone is no offer.
--
-- One script changes both the id in the lock and the offer. So of two concurrent adoptions one finds the offer taken.
-- An id with a tombstone by adoption/give_back cannot adopt any more.
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

-- offered returns the current id in the lock of the hold that a new id may adopt, or has adopted already, and the token;
-- nil if no hold is offered for this secret.
local function offered(tombstone, id, secret)
  local by, hash, token, _, taken = offer(tombstone)
  if hash == redis.sha1hex(secret) and (taken == '0' or by == id) then
    return by, token
  end
end

-- take records that the hold, which was to last for rest ms more, is in the lock under a new id.
local function take(tombstone, id, rest, keep)
  local _, hash, token = offer(tombstone)
  put(tombstone, id, hash, token, serverMillis() + rest, '1', keep + rest)
end
