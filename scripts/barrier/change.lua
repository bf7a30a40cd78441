-- barrier/change: set a barrier, or lift it and free the waiters.
--
-- KEYS[1]  barrier; absent: it is lifted
-- KEYS[2]  record of the page
-- ARGV[1]  number of the operation
-- ARGV[2]  'set' or 'lifted'
-- ARGV[3]  channel
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- Reply    1
-- Caller   Set, Lift of a Barrier
-- Twice    A second run finds the record of the first, and undoes nothing that came later.

-- include record
-- include publish
local barrier, record = KEYS[1], KEYS[2]
local number, to, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if recorded(record, number) then
  return 1
end
local reply
if to == 'set' then
  note(record, number, to)
  reply = done(record, redis.pcall('set', barrier, 1))
else
  note(record, number, to)
  reply = done(record, redis.pcall('del', barrier))
end
if type(reply) == 'table' and reply.err then
  return reply
end
if reply == 1 then -- DEL has found it
  announce(how, channel, '0')
end
return told(1)
