-- leave: how a reader and a writer leave a read-write lock.
--
-- Defines  readerLeaves(lock, timers, id, count, channel, how),
--          writerLeaves(lock, readers, admitted, timers, id, channel, how): both return the reply 1
-- include publish
-- include sides
-- include turns

-- settle updates the hash after a holder has left, and reports whether the lock is free
-- now. Readers may remain: the hash lives as long as the longest of them, and is deleted if
-- all are dead. Of very many dead ones it removes a part; the next caller goes on.
local function settle(lock, timers)
  if redis.call('hlen', lock) <= 1 then
    redis.call('hdel', lock, 'mode') -- the only field, or that is no lock's
    return true
  end
  if redis.call('hget', lock, 'mode') == 'write' then
    return false -- the writer's lease is not changed
  end
  local ms, seen = alive(lock, timers)
  if ms > 0 then
    if seen then
      shorten(lock, ms)
    end
    return false
  end
  return true
end

-- readerLeaves ends a read hold with that count of entries.
local function readerLeaves(lock, timers, id, count, channel, how)
  redis.call('hdel', lock, id)
  for i = tonumber(count) or 0, 1, -1 do
    drop(timers, id, i)
  end
  if settle(lock, timers) then
    announce(how, channel, '0')
  end
  return 1
end

-- writerLeaves ends a write hold. If its owner still reads, waiting readers can enter too.
-- They are woken, which Redisson does not do.
local function writerLeaves(lock, readers, admitted, timers, id, channel, how)
  redis.call('hdel', lock, id .. ':write')
  admit(readers, admitted)
  if redis.call('hlen', lock) > 1 then
    redis.call('hset', lock, 'mode', 'read')
  end
  settle(lock, timers)
  announce(how, channel, '1')
  return 1
end
