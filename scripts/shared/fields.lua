-- fields: which fields of a hash belong to a lock. The id of a hold is "<UUID>:<number>". Any other text is not a hold,
-- and never gets into a reply.
--   <hold id>                   a hold -> its entries
--   <hold id>:write             the write hold of a read-write lock -> its entries
--   <hold id>:<transaction>     a hold in a transaction of Redisson, whose id has 32 hexadecimal
--   <hold id>:write:<transaction>  digits -> its entries
--   mode                        of a read-write lock -> read or write
--   <hash>                      of a value in a group that Redisson locks under one name -> hold id;
--                               the hash has 22 characters of base64
--   <hash>:<hold id>:expire_time, <hash>:<hold id>:lock_count  -> numbers
--
-- Defines  isHold(text), hashes(field), member(field), holder(field, value), isMode(field, value),
--          names(text): whether a text is the id of a hold, or of one in a transaction

local HASHED = 22 -- the length of the hash of a value
local LONGEST = 128 -- no field of a lock is longer
local HOLD = '^(%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+)(.*)$'

-- begun returns the id of a hold with which a text begins, and what follows it.
local function begun(text)
  if #text <= LONGEST then
    return text:match(HOLD)
  end
end

-- isHold reports whether a text is the id of a hold, and nothing else.
local function isHold(text)
  local _, more = begun(text)
  return more == ''
end

local function hashes(field)
  return #field == HASHED and not field:find('[^%w+/]')
end

-- member parses a field that a value in a group has in addition to its hash. It returns the holder and the
-- kind of the field.
local function member(field)
  local hash, whose, what = field:match('^([^:]+):(.+):(%l+_%l+)$')
  if hash and hashes(hash) and isHold(whose) and (what == 'expire_time' or what == 'lock_count') then
    return whose, what
  end
end

-- holder returns the holder that a field is about, or nil for any other field.
local function holder(field, value)
  if hashes(field) then
    return isHold(value) and value or nil
  elseif #value > 19 or not value:find('^%d+$') then
    return nil
  end
  local whose, what = member(field)
  if what == 'expire_time' or #value > 9 then -- no count is so long
    return what == 'expire_time' and whose or nil
  elseif whose then
    return whose
  end
  local id, more = begun(field)
  if more == '' or more == ':write' then
    return id
  end
  more = more and more:gsub('^:write', '')
  return more and #more == 33 and more:find('^:%x+$') and field or nil
end

local function names(text)
  return holder(text, '1') == text and not text:find(':write', 1, true)
end

local function isMode(field, value)
  return field == 'mode' and (value == 'read' or value == 'write')
end
