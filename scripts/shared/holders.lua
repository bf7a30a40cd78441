-- holders: who stands in a lock hash, and whether it is one. A lock hash has a field
-- for each holder, "<client>:<number>" and perhaps more behind another colon, whose
-- value is a count; that of a read-write lock has the field mode, too. A key of
-- another type is refused by Redis itself, with WRONGTYPE.
local function holds(field, value)
  return (field:find(':%-?%d+$') or field:find(':%-?%d+:')) and value:find('^%d+$')
end

-- foreign is the reply if fields and values are not those of a lock: the key is in
-- use for something else, which is left as it is.
local function foreign(fields)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if not holds(field, value) and not (field == 'mode' and (value == 'read' or value == 'write')) then
      return redis.error_reply('FOREIGN the key is a hash that is not a lock')
    end
  end
end

-- FEW is how many fields are looked at to tell who holds the lock.
local FEW = 8

-- strange is foreign of a hash, of which no more than FEW fields are looked at. More
-- than that only a read-write lock has.
local function strange(lock)
  if redis.call('hlen', lock) > FEW then
    return foreign({'mode', redis.call('hget', lock, 'mode') or ''})
  end
  return foreign(redis.call('hgetall', lock))
end

-- refused is the reply to one who finds the lock held by others: {0, rest, one of the
-- holders or '', how many more there are}. If lives is given, it tells the holders
-- that live from those that do not.
local function refused(lock, rest, lives)
  local n = redis.call('hlen', lock)
  if n > FEW then
    local mode = redis.call('hget', lock, 'mode')
    return foreign({'mode', mode or ''}) or {0, rest, '', n - 1}
  end
  local fields = redis.call('hgetall', lock)
  local holder, others = '', 0
  for i = 1, #fields, 2 do
    local field = fields[i]
    local stay = field:gsub(':write$', '')
    if field ~= 'mode' and stay ~= holder and (not lives or lives(field, fields[i + 1])) then
      if holder == '' then
        holder = stay
      else
        others = others + 1
      end
    end
  end
  return foreign(fields) or {0, rest, holder, others}
end
