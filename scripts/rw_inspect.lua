-- rw_inspect: one consistent look at a read-write lock.
--
-- KEYS[1]  lock hash
-- ARGV[1]  ''
-- ARGV[2]  what the names of timers begin with
-- Reply    {pttl, 0, field, value, field, value, ...}; pttl -2: free, -1: no TTL.
--          One field is mode, unless this is a lock of another type. Readers
--          whose time is over are left out.
-- Caller   State, Watch
-- Twice    Reads only.

-- include rw
-- include holders
local fields = redis.call('hgetall', lock)
local reply = foreign(fields)
if reply then
  return reply
end
fields = plainly(fields)
reply = {redis.call('pttl', lock), 0}
local mode = redis.call('hget', lock, 'mode')
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  local writes = mode == 'write' and (field:sub(-6) == ':write' or field:find(':write:', 1, true))
  if not mode or field == 'mode' or writes or rest(field, value) > 0 then
    table.insert(reply, field)
    table.insert(reply, value)
  end
end
return reply
