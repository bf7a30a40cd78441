-- lock/stand_by: lock/enter for a waiter whose client is subscribed to grants. If another client holds the
-- lock, and no other waiter stands by, the waiter stands by: a release by lock/release_next makes it the holder.
--
-- KEYS[1]  lock hash: hold id -> its entries
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  source of tokens: see ARGV[3]
-- KEYS[4]  the waiter that stands by: '<hold id> <lease> <token> <n> <poll>'. The token is for its future hold,
--          and the next n tokens belong to its client too; 'counter': it has no token yet
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  see lock/enter
-- ARGV[4]  how long the waiter stands by, ms
-- ARGV[5]  id of the waiter's client, and a colon
-- ARGV[6]  number of this poll: the message of a grant names the waiter's last poll
-- Reply    as lock/enter; and
--          {1, token, n, 1}  held: a release has made the waiter the holder, or this is a copy
--          {0, pttl, holder, others, 1}  held by others, and the waiter stands by
-- Caller   Lock
-- Twice    As lock/enter. A waiter that has the lock does not stand by, nor one whose hold has
--          ended: a late copy finds the tombstone, which the client leaves if it knows of a
--          copy that may be under way.
-- Memory   As lock/enter. If the server refuses to record the waiter, a release only wakes it.

-- include take
-- include ttl
-- include hash
local lock, tombstone, tokens, standing = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, lease, source, term, client, look = unpack(ARGV)

-- stand records that the waiter stands by. noted is its earlier record: a waiter keeps its token.
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
    -- The waiter's own client holds the lock: it hands the lock over, or wakes the waiter.
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
  -- A release has made the waiter the holder, or this is a copy. The token is drawn first: see Memory.
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
