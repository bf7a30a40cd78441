-- rw_leave: how a reader and a writer leave. ARGV[3] is the channel, ARGV[4] how
-- to publish. It needs rw_turns.

-- settle sees to the hash when somebody has left, and is whether others are let
-- in. What is left may be readers: the hash lives as long as the longest of them,
-- and ends if none of them lives. Of too many that are dead it removes a part; who
-- looks next goes on.
local function settle()
  if redis.call('hlen', lock) <= 1 then
    redis.call('del', lock)
    return true
  end
  if redis.call('hget', lock, 'mode') == 'write' then
    return false -- the time is the writer's
  end
  local ms, seen = alive()
  if ms > 0 then
    if seen then
      shorten(ms)
    end
    return false
  end
  if seen then
    redis.call('unlink', lock)
  end
  return true
end

-- readerLeaves ends the read hold of the stay.
local function readerLeaves(count)
  redis.call('hdel', lock, stay)
  for i = tonumber(count) or 0, 1, -1 do
    drop(i)
  end
  if settle() then
    announce(ARGV[4], ARGV[3], '0')
  end
  return 1
end

-- writerLeaves ends the write hold of the stay. If it reads on, those who wait
-- to read can come in too: they are told, which Redisson does not do.
local function writerLeaves()
  redis.call('hdel', lock, writer)
  admit()
  if redis.call('hlen', lock) > 1 then
    redis.call('hset', lock, 'mode', 'read')
  end
  settle()
  announce(ARGV[4], ARGV[3], '1')
  return 1
end
