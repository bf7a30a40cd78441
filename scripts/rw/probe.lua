-- rw/probe: whether a side of a read-write lock is held, and how often one hold of
-- that side has been entered.
--
-- KEYS[1]  lock hash: see shared/sides.lua
-- ARGV[1]  hold id, or ''
-- ARGV[2]  side: 'read' or 'write'
-- ARGV[3]  what the names of timers begin with
-- Reply    {1 if anybody holds the side or 0, the entries of the hold}
-- Caller   IsLocked, HeldBy
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
if not mode then -- nobody, or one who holds another type of lock: that shuts out everybody
  return {side == 'write' and redis.call('exists', lock) or 0, 0}
end
if side == 'write' then
  if mode ~= 'write' then
    return {0, 0}
  end
  return {1, tonumber(redis.call('hget', lock, id .. ':write') or 0)}
end

-- reads is whether one of these fields is a reader who lives.
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
-- Any reader will do. Only dead ones are passed by, of which there are few: those who
-- write remove them.
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
