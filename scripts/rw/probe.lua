-- rw/probe: whether a side of a read-write lock is held, and how often one hold of
-- that side has been entered.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  hold id, or ''
-- ARGV[2]  side: 'read' or 'write'
-- ARGV[3]  prefix of the timers' names
-- Reply    {held, entries}: 1 if the side is held, else 0; entries of that hold
-- Caller   IsLocked, HoldCount
-- Twice    Reads only.

-- include sides
-- include hash
local lock = KEYS[1]
local id, side, timers = ARGV[1], ARGV[2], ARGV[3]
local reply = foreignAt(lock)
if reply then
  return reply
end
local mode = redis.call('hget', lock, 'mode')
if not mode then -- free, or held as another type of lock, which counts as a write hold
  return {side == 'write' and redis.call('exists', lock) or 0, 0}
end
if side == 'write' then
  if mode ~= 'write' then
    return {0, 0}
  end
  return {1, tonumber(redis.call('hget', lock, id .. ':write') or 0)}
end

-- reads reports whether one of these fields is a live reader.
local function reads(fields)
  for i = 1, #fields, 2 do
    local field, entries = fields[i], fields[i + 1]
    local writer = mode == 'write' and writing(field)
    if field ~= 'mode' and not writer and rest(lock, timers, field, entries) > 0 then
      return true
    end
  end
end

local count = redis.call('hget', lock, id)
if count and rest(lock, timers, id, count) > 0 then
  return {1, tonumber(count)}
end
-- Any live reader will do. There are few dead ones: scripts that write remove them.
if reads(redis.call('hrandfield', lock, 10, 'withvalues')) then
  return {1, 0}
end
local cursor
while cursor ~= '0' do
  local page = redis.call('hscan', lock, cursor or '0')
  cursor = page[1]
  if reads(page[2]) then
    return {1, 0}
  end
end
return {0, 0}
