-- reading: one renewal of a read hold.
--
-- Defines  readerRenewed(lock, first, id, lease, timers): see rw/read_renew

-- include ttl
-- include sides

local function readerRenewed(lock, first, id, lease, timers)
  local count = redis.call('hget', lock, id)
  local ms = redis.call('pttl', first)
  if not count or ms <= 0 then
    return absent(lock, id)
  end
  lengthen(lock, math.max(ms, lease))
  if lease == 0 then
    return 1
  end
  lengthen(first, lease)
  for i = 2, tonumber(count) do -- only Redisson reads these: the first one counts
    local key = timer(timers, id, i)
    if left(lock, key) < lease then
      redis.pcall('pexpire', key, lease)
    end
  end
  return 1
end
