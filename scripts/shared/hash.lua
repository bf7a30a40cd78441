-- hash: reads the holders of a lock from its hash, and checks that the hash belongs to a lock. fields.lua lists the fields
-- of a lock. A hash with any other field, without a hold, or with holds that no lock has together, is other data: it is
-- reported, and not changed. Redis itself refuses a key of another type, with WRONGTYPE.
--
-- A hash with more than FEW fields is a read-write lock, a group or other data. Scripts read a sample of it, so they
-- detect other data without reading all of it. A few other fields among many readers may not be detected; they are not
-- changed. A script that deletes the hash reads all of it before: see whole.lua.
--
-- Defines  foreign(fields), some(lock), has(lock, fields, id), foreignAt(lock),
--          refused(lock, rest, lives, fields), plainly(fields),
--          report(fields, ttl, token, waiters). fields is a list of fields and values,
--          as HGETALL returns it
-- include fields

-- foreign is the reply if the fields do not belong to a lock. mode is the mode of a hash of which
-- they are a sample.
local function foreign(fields, mode)
  local plain, grouped, held = 0, false, #fields == 0
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if isMode(field, value) then
      mode = value
    elseif holder(field, value) then
      held = true
      local ofGroup = hashes(field) or member(field)
      grouped, plain = grouped or ofGroup, plain + (ofGroup and 0 or 1)
    else
      held = false
      break
    end
  end
  -- Only a lock that is held has a hash. It has one hold, or the holds of a read-write lock or of a group.
  if not held or plain > 1 and not mode or grouped and (mode or plain > 0) then
    return redis.error_reply('FOREIGN a hash with other data')
  end
end

-- FEW is how many fields a script reads to find the holders of the lock.
local FEW = 8

-- some returns the fields of the hash at a key; if there are more than FEW, a sample, which
-- is too long by one.
local function some(lock)
  return redis.call('hrandfield', lock, FEW + 1, 'withvalues')
end

local function isSample(fields)
  return #fields > 2 * FEW
end

-- has reports whether the hash, of which some(lock) has returned fields, has the field of a hold.
local function has(lock, fields, id)
  if isSample(fields) then
    return redis.call('hexists', lock, id) == 1
  end
  for i = 1, #fields, 2 do
    if fields[i] == id then
      return true
    end
  end
  return false
end

-- judged is foreign for what some(lock) has returned. It also returns the mode of a hash with more
-- fields than that.
local function judged(lock, fields)
  if not isSample(fields) then
    return foreign(fields)
  end
  local mode = redis.call('hget', lock, 'mode')
  if mode and not isMode('mode', mode) then
    return foreign({'mode', mode})
  end
  return foreign(fields, mode), mode
end

-- foreignAt is foreign for the hash at a key.
local function foreignAt(lock)
  return (judged(lock, some(lock)))
end

-- sided is the reply of a type without sides if a type with sides holds the lock.
local function sided()
  return redis.error_reply('FOREIGN it is a read-write lock')
end

-- refused returns the reply to an acquire while others hold the lock: {0, rest, one of the holders or '', how many more
-- there are}. lives, if given, reports whether a holder is alive; dead holders are not counted. fields is the result of
-- some(lock), if the caller has it. For a large group it is a sample.
local function refused(lock, rest, lives, fields)
  fields = fields or some(lock)
  local reply, mode = judged(lock, fields)
  if reply then
    return reply
  elseif mode then
    return {0, rest, '', redis.call('hlen', lock) - 1}
  end
  local first, seen, others = '', {}, 0
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local whose = holder(field, value)
    if whose and not seen[whose] and (not lives or lives(field, value)) then
      seen[whose] = true
      if first == '' then
        first = whose
      else
        others = others + 1
      end
    end
  end
  return {0, rest, first, others}
end

-- plainly returns the fields of a lock hash with the fields of a group replaced, as if each of
-- its holders had a plain lock: the holder, and its highest count for any value.
local function plainly(fields)
  local plain, at = {}, {}
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local whose, what = member(field)
    if not whose and not hashes(field) or what == 'lock_count' and not at[whose] then
      table.insert(plain, whose or field)
      table.insert(plain, value)
      if whose then
        at[whose] = #plain
      end
    elseif what == 'lock_count' and tonumber(value) > tonumber(plain[at[whose]]) then
      plain[at[whose]] = value
    end
  end
  return plain
end

-- report is the reply of lock/inspect for a lock without a shared side.
local function report(fields, ttl, token, waiters)
  local reply = {ttl, token, waiters}
  local holders = plainly(fields)
  for i = 1, #holders, 2 do
    if holders[i] == 'mode' then
      return sided()
    end
    table.insert(reply, holders[i])
    table.insert(reply, holders[i + 1])
    table.insert(reply, 'exclusive')
  end
  return reply
end
