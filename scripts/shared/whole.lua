-- whole: all fields of a lock's hash, for a script that shows or deletes them.
--
-- Defines  all(lock), freeable(lock, sides)
-- include hash

-- all returns all fields of the hash at a key, or nil and the reply if they do not belong to a lock.
local function all(lock)
  local fields = some(lock)
  local reply = judged(lock, fields)
  if not reply and isSample(fields) then
    fields = redis.call('hgetall', lock)
    reply = foreign(fields)
  end
  return not reply and fields, reply
end

-- freeable is all for a script that deletes the hash, no matter who holds the lock. Each lock has a TTL: a hash without a
-- TTL is kept. sides reports whether the caller's type has two sides.
local function freeable(lock, sides)
  local fields, reply = all(lock)
  if fields and #fields > 0 and redis.call('pttl', lock) < 0 then
    reply = redis.error_reply('FOREIGN a hash like that of a lock, but without a TTL, which each lock has')
  elseif fields and not sides and redis.call('hexists', lock, 'mode') == 1 then
    reply = sided()
  end
  return not reply and fields, reply
end
