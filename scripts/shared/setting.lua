-- setting: the latest operation that has made a PermitSemaphore, or set its number. It shows a script that undoes an
-- addition whether the number was set since, or the semaphore was made anew. It is kept as long as the records of
-- operations: an older addition is not undone any more.
--
-- Defines  lastSetting(key), setSince(key, before), setting(key, record, number)

-- lastSetting returns the latest known operation, or '-'.
local function lastSetting(key)
  return redis.call('get', key) or '-'
end

-- setSince reports whether the number was set since lastSetting returned before.
local function setSince(key, before)
  local last = lastSetting(key)
  return last ~= '-' and last ~= before
end

-- setting records an operation as the latest, and returns the new lastSetting.
local function setting(key, record, number)
  local latest = record .. ':' .. number
  redis.call('set', key, latest, 'px', KEEP)
  return latest
end
