-- setting: which operation has made a PermitSemaphore, or set its number, last. A script that undoes an
-- addition sees by that whether the number was set since, whatever it was, or is the number of a
-- semaphore that was made anew. It is known for as long as the records of operations: an addition
-- from before is not undone later.
--
-- Defines  lastSetting(key), setSince(key, before), setting(key, record, number)

-- lastSetting is the latest that is known, or '-'.
local function lastSetting(key)
  return redis.call('get', key) or '-'
end

-- setSince reports whether the number was set since lastSetting was this.
local function setSince(key, before)
  local last = lastSetting(key)
  return last ~= '-' and last ~= before
end

-- setting notes an operation as the latest, and returns what lastSetting is then.
local function setting(key, record, number)
  local latest = record .. ':' .. number
  redis.call('set', key, latest, 'px', KEEP)
  return latest
end
