-- ttl: the time to live of keys.
--
-- Defines  lengthen(key, ms)

-- lengthen makes an existing key live for at least ms from now; 0 changes nothing.
local function lengthen(key, ms)
  if ms > 0 and redis.call('pttl', key) < ms then
    redis.call('pexpire', key, ms)
  end
end
