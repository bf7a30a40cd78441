-- sides: the two sides of a read-write lock. Its hash has mode -> read or write, hold
-- id -> entries of a reader, hold id:write -> entries of the writer. Each entry of a
-- reader has a timer, a key that lives as long as its lease. The first timer of a hold
-- of ours lives as long as the longest lease of the hold. A reader without a live timer is
-- dead, whatever the hash says.
--
-- Defines  timer(timers, reader, i), writing(field), drop(timers, id, i), left(lock, key),
--          rest(lock, timers, reader, count, all), alive(lock, timers),
--          shorten(lock, ms), absent(lock, id). timers is the prefix of the timers' names
-- include fields

local function timer(timers, reader, i)
  return timers .. reader .. ':rwlock_timeout:' .. i
end

-- writing returns the hold id in the field of a writer, nil if the field is not a writer's.
-- The field of a Java transaction goes on after ":write".
local function writing(field)
  local id, more = field:match('^(.-):write(.*)$')
  if id and (more == '' or more:sub(1, 1) == ':') then
    return id .. more
  end
end

-- drop deletes a timer of a hold. A timer that is moving to another node expires there.
local function drop(timers, id, i)
  redis.pcall('del', timer(timers, id, i))
end

-- FEW_READERS is how many readers, and timers of one reader, a script checks. With more it reports that it has not checked
-- all.
local FEW_READERS = 100

-- left returns the rest of a timer's time, 0 or less if it has expired, and whether that is known. While the slot moves to
-- another node, a timer that is not found here may be there. Redis then refuses to read it (or, on the importing node, to
-- read it together with a key that is here). Such a timer counts as alive until the next check.
local function left(lock, key)
  local ms = redis.pcall('pttl', key)
  if type(ms) == 'number' and (ms > 0 or type(redis.pcall('exists', lock, key)) == 'number') then
    return ms, true
  end
  return 100, false
end

-- rest returns how long a reader with that count of timers lives, 0 if it is dead, and
-- whether no timer lives longer. Without all it stops at the first live timer.
local function rest(lock, timers, reader, count, all)
  local longest, known = 0, true
  count = tonumber(count) or 0
  for i = 1, math.min(count, FEW_READERS) do
    local ms, sure = left(lock, timer(timers, reader, i))
    longest, known = math.max(longest, ms), known and sure
    if longest > 0 and not all then
      break
    end
  end
  if longest == 0 and count > FEW_READERS then
    return 100, false
  end
  return longest, known and (all or count <= 1) and count <= FEW_READERS
end

-- alive returns how long the readers live, 0 if it found no live reader, and whether it checked all of them: then the time
-- is the time of the longest reader. It removes the dead readers that it finds, and the hash with the last one. A hash without
-- a TTL, or with other fields than readers, is not changed, and counts as not checked. Of many readers it first checks a
-- random few, and stops at a live one. The more readers are dead, the sooner they are found.
local function alive(lock, timers)
  local all = redis.call('hlen', lock) <= FEW_READERS
  local longest, seen, dead = 0, all, {}
  local readers, data = 0, false

  local function look(fields)
    for i = 1, #fields, 2 do
      local field, value = fields[i], fields[i + 1]
      if not isMode(field, value) then
        readers = readers + 1
        data = data or not tonumber(value) or not holder(field, value)
        local ms, known = rest(lock, timers, field, value, all)
        longest, seen = math.max(longest, ms), seen and known
        if ms > 0 and not all then
          return
        elseif ms <= 0 then
          dead[#dead + 1] = field
        end
      end
      if #dead == 2 * FEW_READERS then
        return
      end
    end
  end

  if all then
    look(redis.call('hgetall', lock))
  else
    look(redis.call('hrandfield', lock, 10, 'withvalues'))
    local cursor
    while longest == 0 and #dead < 2 * FEW_READERS and cursor ~= '0' do
      local page = redis.call('hscan', lock, cursor or '0')
      cursor = page[1]
      look(page[2])
    end
  end
  if data or readers == 0 or #dead > 0 and redis.call('pttl', lock) < 0 then
    return longest, false
  elseif #dead > 0 then
    redis.call('hdel', lock, unpack(dead))
    if redis.call('hlen', lock) == 1 then
      redis.call('hdel', lock, 'mode')
    end
  end
  return longest, seen
end

-- shorten lowers the TTL of the hash to the readers'.
local function shorten(lock, ms)
  if redis.call('pttl', lock) > ms then
    redis.call('pexpire', lock, ms)
  end
end

-- absent returns the reply if a hold does not exist: 0, or -1 if others hold the lock. A demoted master, whose data may be
-- old, refuses the HDEL, of a field that cannot exist.
local function absent(lock, id)
  redis.call('hdel', lock, '')
  local others = redis.call('hlen', lock)
  for _, own in ipairs({'mode', id, id .. ':write'}) do
    others = others - redis.call('hexists', lock, own)
  end
  if others > 0 then
    return -1
  end
  return 0
end
