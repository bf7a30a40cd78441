-- renewal: one renewal of a hold.
--
-- Defines  renewed(lock, id, lease): see lock/renew

-- include ttl

local function renewed(lock, id, lease)
  if redis.call('hexists', lock, id) == 0 then
    redis.call('hdel', lock, '')
    return -redis.call('exists', lock)
  end
  lengthen(lock, lease)
  return 1
end
