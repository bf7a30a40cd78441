-- rw_leave: how a reader and a writer leave. ARGV[3] is the channel, ARGV[4] how
-- to publish. It needs rw_turns.

-- readerLeaves ends the read hold of the stay. The time of the hash stays as it
-- is: it is at least what is left to the others, and what a writer of the same
-- stay was promised.
local function readerLeaves(count)
  redis.call('hdel', lock, stay)
  for i = tonumber(count) or 0, 1, -1 do
    drop(i)
  end
  local mode = redis.call('hget', lock, 'mode')
  if redis.call('hlen', lock) <= 1 or mode == 'read' and alive() == 0 then
    redis.call('del', lock)
    announce(ARGV[4], ARGV[3], '0')
  end
  return 1
end

-- writerLeaves ends the write hold of the stay. If it reads on, those who wait
-- to read can come in too: they are told, which Redisson does not do.
local function writerLeaves()
  redis.call('hdel', lock, writer)
  admit()
  if redis.call('hlen', lock) <= 1 or alive() == 0 then
    redis.call('del', lock)
  else
    redis.call('hset', lock, 'mode', 'read')
  end
  announce(ARGV[4], ARGV[3], '1')
  return 1
end
