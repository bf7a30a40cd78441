-- total: how many permits a Semaphore has, as far as clients of this package have set it. Its
-- key is in addition to the key of the free permits, which is all that Redisson has: the number, how often
-- SetPermits has set it, and which operation has made the semaphore. They show a script that undoes an operation whether
-- the number was set since, and whether the semaphore was deleted and made anew since.
--
-- Defines  numbers(permits, key, held), counts(all, free), setNumbers(permits, free, key, n, times, made),
--          maker(record, number)
-- include mark

-- numbers returns the number of free permits, or nil if none are set, and the reply if the key has other data; the number
-- of all permits, or nil if not known; how often SetPermits has set that number; and the operation that has made the
-- semaphore, or '-' if not known. held: see others.
local function numbers(permits, key, held)
  local free, foreign, mark = marked(permits, key)
  mark = free and mark
  foreign = foreign or others('Semaphore', mark, held)
  local n, times, made = string.match(mark or '', '^(%-?%d+) (%d+) (%S+)$')
  return free, foreign, tonumber(n or nil), tonumber(times or 0), made or '-'
end

-- counts reports whether the number of all permits can be right. If more permits are free, more were released than taken,
-- or Java has added some.
local function counts(all, free)
  return all and all >= free
end

-- setNumbers sets all that numbers returns.
local function setNumbers(permits, free, key, n, times, made)
  return redis.pcall('mset', permits, string.format('%.0f', free), key, string.format('%.0f %.0f %s', n, times, made))
end

-- maker returns a unique text for the operation that makes a semaphore.
local function maker(record, number)
  return string.match(record, '.*:rlock:op:(.+)$') .. ':' .. number
end
