-- hash: who holds a lock, by its hash, and whether that is the hash of a lock. It has a
-- field for each holder, "<client>:<number>" and perhaps more behind another colon,
-- whose value is a count; that of a read-write lock has the field mode, too. A group of
-- values that Redisson locks under one name has three fields for each value: its
-- hash in base64 -> holder, and "<hash>:<holder>:expire_time" and
-- "<hash>:<holder>:lock_count" -> numbers. A key of another type is refused by Redis
-- itself, with WRONGTYPE.
-- Defines  foreign(fields), foreignAt(lock), refused(lock, rest, lives), plainly(fields),
--          report(fields, ttl, token, waiters). fields are fields and values, as of
--          HGETALL

-- How long the hash of a value in a group is, and what Redisson's holders look like.
local HASHED = 22
local THEIRS = '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+$'

local function hashes(text)
  return #text == HASHED and not text:find('[^%w+/]')
end

-- member takes apart a field that a value in a group has beside its hash: whose it
-- is, and what it tells.
local function member(field)
  local hash, holder, what = field:match('^([^:]+):(.+):(%l+_%l+)$')
  if hash and hashes(hash) and (what == 'expire_time' or what == 'lock_count') then
    return holder, what
  end
end

-- holder is who a field of a lock hash tells of; nil: the field is none of those.
local function holder(field, value)
  if hashes(field) then
    return value:match(THEIRS)
  elseif value:find('^%d+$') and (field:find(':%-?%d+$') or field:find(':%-?%d+:')) then
    return member(field) or field:match('^(.*):write$') or field
  end
end

-- foreign is the reply if fields and values are not those of a lock: the key is in
-- use for something else, which is left as it is.
local function foreign(fields)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if not holder(field, value) and not (field == 'mode' and (value == 'read' or value == 'write')) then
      return redis.error_reply('FOREIGN the key is a hash that is not a lock')
    end
  end
end

-- FEW is how many fields are looked at to tell who holds the lock.
local FEW = 8

-- foreignAt is foreign of a hash, of which no more than FEW fields are looked at. More
-- than that only a read-write lock has.
local function foreignAt(lock)
  if redis.call('hlen', lock) > FEW then
    return foreign({'mode', redis.call('hget', lock, 'mode') or ''})
  end
  return foreign(redis.call('hgetall', lock))
end

-- refused is the reply to one who finds the lock held by others: {0, rest, one of the
-- holders or '', how many more there are}. If lives is given, it tells the holders
-- that live from those that do not.
local function refused(lock, rest, lives)
  local n, fields = redis.call('hlen', lock), nil
  if n <= FEW then
    fields = redis.call('hgetall', lock)
  else
    local mode = redis.call('hget', lock, 'mode')
    if mode then
      return foreign({'mode', mode}) or {0, rest, '', n - 1}
    end
    -- A large group. A part of it has to do.
    fields = redis.call('hrandfield', lock, FEW, 'withvalues')
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

-- plainly is the fields and values of a lock hash, those of a group as if each of its
-- holders had a plain lock: that holder, and how often it has the value that it has
-- most often.
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

-- report is the reply of lock/inspect for a hash each of whose holders is alone.
local function report(fields, ttl, token, waiters)
  local reply = {ttl, token, waiters}
  local holders = plainly(fields)
  for i = 1, #holders, 2 do
    table.insert(reply, holders[i])
    table.insert(reply, holders[i + 1])
    table.insert(reply, 'exclusive')
  end
  return reply
end
