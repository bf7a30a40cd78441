-- hash: who holds a lock, read from its hash, and whether it is the hash of a lock. The
-- hash has a field for each holder, "<client>:<number>" and perhaps more after another
-- colon; its value is a count. A read-write lock also has the field mode. A group of
-- values that Redisson locks under one name has three fields for each value: its
-- hash in base64 -> holder, and "<hash>:<holder>:expire_time" and
-- "<hash>:<holder>:lock_count" -> numbers. Redis itself refuses a key of another type,
-- with WRONGTYPE.
--
-- Defines  foreign(fields), some(lock), has(lock, fields, id), foreignAt(lock),
--          refused(lock, rest, lives, fields), plainly(fields),
--          report(fields, ttl, token, waiters). fields is a list of fields and values,
--          as HGETALL returns it

-- The length of the hash of a value in a group, and the form of Redisson's hold ids.
local HASHED = 22
local THEIRS = '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+$'

local function hashes(text)
  return #text == HASHED and not text:find('[^%w+/]')
end

-- member parses a field that a value in a group has beside its hash. It returns the
-- holder and the kind of the field.
local function member(field)
  local hash, holder, what = field:match('^([^:]+):(.+):(%l+_%l+)$')
  if hash and hashes(hash) and (what == 'expire_time' or what == 'lock_count') then
    return holder, what
  end
end

-- holder is the holder that a field of a lock hash is about; nil: it is no such field.
local function holder(field, value)
  if hashes(field) then
    return value:match(THEIRS)
  elseif value:find('^%d+$') and (field:find(':%-?%d+$') or field:find(':%-?%d+:')) then
    return member(field) or field:match('^(.*):write$') or field
  end
end

-- foreign is the reply if the fields are not those of a lock: the key is in use for
-- something else, and is not changed.
local function foreign(fields)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if not holder(field, value) and not (field == 'mode' and (value == 'read' or value == 'write')) then
      return redis.error_reply('FOREIGN a hash with other data')
    end
  end
end

-- FEW is how many fields a script reads to tell who holds the lock.
local FEW = 8

-- some returns the fields of the hash at a key; if there are more than FEW, a sample, which
-- is too long by one.
local function some(lock)
  return redis.call('hrandfield', lock, FEW + 1, 'withvalues')
end

local function isSample(fields)
  return #fields > 2 * FEW
end

-- has reports whether the hash, of which some(lock) has returned fields, has that of a hold.
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

-- foreignAt is foreign for the hash at a key. Only a read-write lock has more than FEW
-- fields.
local function foreignAt(lock)
  local fields = some(lock)
  if isSample(fields) then
    return foreign({'mode', redis.call('hget', lock, 'mode') or ''})
  end
  return foreign(fields)
end

-- refused is the reply to an acquire that finds the lock held by others: {0, rest, one of
-- the holders or '', how many more there are}. lives, if given, reports whether a holder
-- is alive; the others are not counted. fields is what some(lock) has returned, if the
-- caller has it. Of a large group, a sample has to do.
local function refused(lock, rest, lives, fields)
  fields = fields or some(lock)
  if isSample(fields) then
    local mode = redis.call('hget', lock, 'mode')
    if mode then
      return foreign({'mode', mode}) or {0, rest, '', redis.call('hlen', lock) - 1}
    end
  end
  local reply = foreign(fields)
  if reply then
    return reply
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

-- plainly returns the fields of a lock hash with those of a group replaced, as if each of
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
      return redis.error_reply('FOREIGN it is a read-write lock')
    end
    table.insert(reply, holders[i])
    table.insert(reply, holders[i + 1])
    table.insert(reply, 'exclusive')
  end
  return reply
end
