-- rw_probe: whether a side of a read-write lock is held, and how often one hold of
-- that side has been entered.
--
-- KEYS[1]  lock hash
-- ARGV[1]  stay id, or ''
-- ARGV[2]  what the names of timers begin with
-- ARGV[3]  'read' or 'write'
-- Reply    {1 if anybody holds the side or 0, the entries of the stay}
-- Caller   IsLocked, HeldBy
-- Twice    Reads only.

-- include rw
-- include holders
local reply = strange(lock)
if reply then
  return reply
end
local mode = redis.call('hget', lock, 'mode')
if not mode then -- nobody, or one who holds another type of lock: that shuts out everybody
  return {ARGV[3] == 'write' and redis.call('exists', lock) or 0, 0}
end
if ARGV[3] == 'write' then
  if mode ~= 'write' then
    return {0, 0}
  end
  return {1, tonumber(redis.call('hget', lock, writer) or 0)}
end

-- reads is whether one of these fields is a reader who lives.
local function reads(fields)
  for i = 1, #fields, 2 do
    local field = fields[i]
    local writes = mode == 'write' and (field:sub(-6) == ':write' or field:find(':write:', 1, true))
    if field ~= 'mode' and not writes and rest(field, fields[i + 1]) > 0 then
      return true
    end
  end
end

local count = redis.call('hget', lock, stay)
if count and rest(stay, count) > 0 then
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
