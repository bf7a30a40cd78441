-- total: how many permits a Semaphore has, as far as clients of this package have set it. Its
-- key is beside that of the free permits, which is all that Redisson has.
--
-- Defines  total(key), totalIs(key, n), totalGrows(key, n)

-- total returns the number; nil if it is not known.
local function total(key)
  return tonumber(redis.call('get', key) or nil)
end

local function totalIs(key, n)
  redis.call('set', key, string.format('%.0f', tonumber(n)))
end

-- totalGrows adds to the number, if it is known. n may be negative.
local function totalGrows(key, n)
  local all = total(key)
  if all then
    totalIs(key, all + n)
  end
end
