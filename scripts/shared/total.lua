-- total: how many permits a Semaphore has, as far as clients of this package have set it. Its
-- key is beside that of the free permits, which is all that Redisson has: the number, and if it
-- was ever set by SetPermits, how often. Whoever undoes an addition sees by that whether
-- the number was set since, whatever it was.
--
-- Defines  total(key), counts(all, free), totalIs(key, n, times)

-- total returns the number, nil if it is not known; and how often it was set by SetPermits.
local function total(key)
  local n, times = string.match(redis.call('get', key) or '', '^(%-?%d+) ?(%d*)$')
  return tonumber(n or nil), tonumber(times or nil) or 0
end

-- counts reports whether the number can be true. If more are free, somebody has released more
-- than were taken, or Java has added some.
local function counts(all, free)
  return all and all >= free
end

local function totalIs(key, n, times)
  redis.call('set', key, string.format(times > 0 and '%.0f %.0f' or '%.0f', n, times))
end
