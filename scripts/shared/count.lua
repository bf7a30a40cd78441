-- count: the number at a key.
--
-- Defines  MOST, OVERFLOW, parsed(text), count(key)

-- MOST is the largest count, the largest int in Java.
local MOST = 2147483647
local OVERFLOW = redis.error_reply('OVERFLOW more permits than a semaphore can have')

-- parsed returns a number, or nil and the reply if it is none.
local function parsed(text)
  if #text > 12 or not string.find(text, '^%-?%d+$') then
    return nil, redis.error_reply('FOREIGN the key is a string that is no number')
  end
  return tonumber(text)
end

-- count returns the number at a key, or nil if there is none; or nil and the reply if the key has other data, which is
-- not changed.
local function count(key)
  local text = redis.call('get', key)
  if text then
    return parsed(text)
  end
end
