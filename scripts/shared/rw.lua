-- rw: what the scripts of a read-write lock have in common. In all of them
--   KEYS[1] is the lock hash: mode -> read or write, stay id -> count of reads,
--           stay id:write -> count of writes
--   ARGV[1] is the stay id
--   ARGV[2] is what the names of timers begin with
-- Each read hold has a timer, a key that lives as long as its lease. The first
-- timer of a stay of ours lives as long as anything that the stay was promised:
-- readers without a live timer are dead, whatever the hash says.
local lock, stay, timers = KEYS[1], ARGV[1], ARGV[2]
local writer = stay .. ':write'

local function timer(reader, i)
  return timers .. reader .. ':rwlock_timeout:' .. i
end

local function lengthen(key, ms)
  if redis.call('pttl', key) < ms then
    redis.call('pexpire', key, ms)
  end
end

-- left is the rest of a timer's time: 0 or less if it has run out. While the
-- slot moves to another node, what is not found here may be there. Redis refuses
-- to look for it then (or, where the slot arrives, to look for it together with
-- a key that is here): such a timer counts as alive, for as long as it takes to
-- look again.
local function left(key)
  local ms = redis.pcall('pttl', key)
  if type(ms) == 'number' and ms <= 0 and type(redis.pcall('exists', lock, key)) == 'number' then
    return ms
  end
  return type(ms) == 'number' and ms > 0 and ms or 100
end

-- drop deletes a timer of this stay. One that is on its way to another node
-- runs out there.
local function drop(i)
  redis.pcall('del', timer(stay, i))
end

-- rest is for how long a reader with so many timers lives, as far as the first
-- live one tells; 0 if it is dead.
local function rest(reader, count)
  for i = 1, tonumber(count) or 0 do
    local ms = left(timer(reader, i))
    if ms > 0 then
      return ms
    end
  end
  return 0
end

-- alive looks for a reader that lives, and returns for how long one does, or 0;
-- and the dead that it met. It stops at the first: of many readers most live.
local function alive()
  local cursor, dead = '0', {}
  repeat
    local page = redis.call('hscan', lock, cursor)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local reader = page[2][i]
      if reader ~= 'mode' then
        local ms = rest(reader, page[2][i + 1])
        if ms > 0 then
          return ms, dead
        end
        dead[#dead + 1] = reader
      end
    end
  until cursor == '0'
  return 0, dead
end

-- absent is the reply if the stay does not hold the lock: 0, or -1 if others
-- do. A demoted master, whose data may be old, refuses the HDEL of a field that
-- cannot exist.
local function absent()
  redis.call('hdel', lock, '')
  local others = redis.call('hlen', lock)
  for _, own in ipairs({'mode', stay, writer}) do
    others = others - redis.call('hexists', lock, own)
  end
  if others > 0 then
    return -1
  end
  return 0
end
