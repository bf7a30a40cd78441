-- others: whether a number is that of another type, as far as the keys beside it tell: Semaphore,
-- PermitSemaphore and CountDownLatch of one name would use one number.
--
-- Defines  others(type, keys...)

-- others is the reply if one of the keys is there, which only those of that type have.
local function others(type, ...)
  if redis.call('exists', ...) > 0 then
    return redis.error_reply('FOREIGN it is a ' .. type)
  end
end
