-- lock/stand_by: lock/enter for a waiter that listens, which stands by if the lock is held by
-- another client: a release by lock/release_next makes it the holder.
--
-- KEYS[1]  lock hash: hold id -> its entries
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  source of tokens: see ARGV[3]
-- KEYS[4]  who stands by: '<hold id> <lease> <token> <n> <look>'. The token is for the hold to be,
--          and the n that follow are the client's too; 'counter': it has no token yet
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  see lock/enter
-- ARGV[4]  how long it stands by, ms
-- ARGV[5]  its client, and a colon
-- ARGV[6]  number of this look: a message that the lock was granted names the last one
-- Reply    as lock/enter; and
--          {1, token, n, 1}  held, since a release has made it the holder, or this is a copy
--          {0, pttl, holder, others, 1}  held by others, and it stands by
-- Caller   Lock
-- Twice    As lock/enter. A waiter that has the lock does not stand by, nor one whose hold has
--          ended: a late copy finds the tombstone, which the client leaves if it knows of a
--          copy that may be under way.
-- Memory   As lock/enter. If the server refuses to note who stands by, a release wakes it.

-- include take
-- include ttl
-- include hash
local lock, tombstone, tokens, standing = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, lease, source, term, client, look = unpack(ARGV)

-- stand notes that the waiter stands by. Its token remains, if it has one: what is noted.
local function stand(noted)
  local token, n = 'counter', 0
  if noted then
    token, n = noted:match('^%S+ %d+ (%w+) (%d+)')
  elseif source ~= token then
    local last
    token, last = drawToken(tokens, micros())
    token, n = reserve(token, last, source)
    token = string.format('%.0f', token)
  end
  redis.call('set', standing, table.concat({id, lease, token, n, look}, ' '), 'px', term)
end

local free = redis.call('exists', lock, tombstone) == 0
if not free and redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
local who = redis.call('get', standing)
local mine = who and who:sub(1, #id + 1) == id .. ' '
if not free and redis.call('hexists', lock, id) == 0 then
  local reply = refused(lock, redis.call('pttl', lock))
  if reply.err then
    return reply
  elseif reply[3]:sub(1, #client) == client then
    -- The holder's client hands the lock over, or wakes its waiter itself.
    if mine then
      redis.call('del', standing)
    end
  elseif mine or not who then
    if pcall(stand, who) or mine then
      reply[5] = 1
    end
  end
  return reply
end
local token, n, found = nil, 0, nil
if free then
  token, n = take(lock, id, lease, tokens, source)
else
  -- A release has made it the holder, or this is a copy. The token first: see Memory.
  if source == 'counter' then
    token = tonumber(redis.call('get', tokens))
  else
    token = drawToken(tokens, micros())
  end
  lengthen(lock, tonumber(lease))
  found = 1
end
if mine then
  redis.call('del', standing)
end
return (n > 0 or found) and {1, token, n, found} or token
