-- rw/inspect: one consistent view of a read-write lock.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  prefix of the timers' names
-- ARGV[2..3]  channel of its releases, and how they are published: see shared/listeners.lua
-- Reply    see lock/inspect; the token is 0. Dead readers are left out. The holder of
--          another type of lock with this name counts as exclusive
-- Caller   State, Watch
-- Twice    Reads only.

-- include sides
-- include whole
-- include listeners
local lock, timers = KEYS[1], ARGV[1]
local fields, reply = all(lock)
if reply then
  return reply
end
reply = {redis.call('pttl', lock), 0, listeners(ARGV[2], ARGV[3])}
local mode = redis.call('hget', lock, 'mode')
local holders = plainly(fields)
for i = 1, #holders, 2 do
  local field, entries = holders[i], holders[i + 1]
  local writer = mode == 'write' and writing(field)
  if field == 'mode' then
    -- no holder
  elseif writer or not mode or rest(lock, timers, field, entries) > 0 then
    table.insert(reply, writer or field)
    table.insert(reply, entries)
    table.insert(reply, (writer or not mode) and 'exclusive' or 'shared')
  end
end
return reply
