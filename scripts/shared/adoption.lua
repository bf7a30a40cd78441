-- adoption: how a hold passes to another client, under a new id. The tombstone of the old id
-- says how far that has come:
--   1                          its holder has left: it gave the hold up for whoever adopts it,
--                              or has heard that it was adopted
--   '<id> <until> <entries>'   adopted under this id. The holder before may believe that it has
--                              the lock until the server ms; it had entered so often
-- The new id is in the lock from the first run on, so nobody else can enter, and no request of
-- the holder before finds its hold. But the one who adopts may not begin before the other has
-- left, or its lease is over.
--
-- Leases are never added up. As long as the holder before may believe that it has the lock, the hold
-- lasts for that and a lease more: who adopts can begin only then, and nobody may enter between. The
-- first run that finds that the other has ended gives the hold the lease of who adopts, whatever was
-- left. Then nobody else relies on what was left; who adopts does on no more than it asked for. From
-- then on it may have extended that, so a copy only lengthens: the tombstone of the new id says so.
--   begun                      who has adopted has its lease. Any other tombstone of the new id says
--                              that the adoption is over: it was given up, or what it began has ended
--
-- Defines  wasAdopted(tombstone), leftFor(tombstone, id), bury(tombstone, id, rest, entries, keep),
--          BEGUN, begins(own, keep), undone(tombstone, id), withdrawn(tombstone, keep),
--          detached(tombstone, keep, found)
-- include time

local function serverMillis()
  return math.floor(micros() / 1000)
end

-- wasAdopted reports whether the hold with this tombstone was adopted, and its holder has not said
-- that it knows.
local function wasAdopted(tombstone)
  return (redis.call('get', tombstone) or ''):find(' ', 1, true) ~= nil
end

-- leftFor returns for how many ms the holder before may still believe that it has the lock, and
-- how often it had entered. id is that of the one who adopts.
local function leftFor(tombstone, id)
  local by, to, entries = (redis.call('get', tombstone) or ''):match('^(%S+) (%d+) (%d+)$')
  if by ~= id then
    return 0
  end
  return math.max(to - serverMillis(), 0), entries
end

-- bury leaves the tombstone of a hold that is adopted now under an id, and was to last for rest
-- ms. It returns how long its holder may believe that it has the lock: 0 if it has left.
local function bury(tombstone, id, rest, entries, keep)
  local left = redis.call('get', tombstone) == '1'
  rest = left and 0 or math.max(rest, 0)
  redis.call('set', tombstone, string.format('%s %.0f %s', id, serverMillis() + rest, entries), 'px', string.format('%.0f', keep + rest))
  return rest
end

local BEGUN = 'begun'

-- begins notes that the hold has the lease of who has adopted it. own is the tombstone of the new id.
local function begins(own, keep)
  redis.call('set', own, BEGUN, 'px', keep)
end

-- undone returns for how many ms the holder before can have its hold back, and how often it has
-- entered it; 0 if it is too late. Its tombstone is gone then.
local function undone(tombstone, id)
  local rest, entries = leftFor(tombstone, id)
  if rest > 0 then
    redis.call('del', tombstone)
  end
  return rest, entries
end

-- detached notes that a holder has left, and returns the reply about its hold; found is that of a
-- renewal.
local function detached(tombstone, keep, found)
  local adopted = wasAdopted(tombstone)
  redis.call('set', tombstone, 1, 'px', keep)
  return found ~= 1 and adopted and -2 or found
end

-- withdrawn stops late copies of an adoption.
local function withdrawn(tombstone, keep)
  redis.call('set', tombstone, 1, 'px', keep)
end
