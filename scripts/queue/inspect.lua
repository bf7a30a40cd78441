-- queue/inspect: one consistent view of a FairReadWriteLock or PriorityLock.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- Reply    see lock/inspect; the token is 0 if no hold is exclusive
-- Caller   State, Watch
-- Twice    Reads only.

-- include queue
local ttl, token = 0, 0
local reply = {0, 0, redis.call('zcard', alone) + redis.call('zcard', together)}
local holds = redis.call('zrangebyscore', ends, string.format('%.0f', now), '+inf', 'withscores')
for i = 1, #holds, 2 do
  local hold, at = holds[i], tonumber(holds[i + 1])
  ttl = math.max(ttl, at - now)
  if hold == 'exclusive' then
    local hash = redis.call('hmget', holders, 'exclusive', 'count', 'token')
    token = tonumber(hash[3] or 0)
    table.insert(reply, hash[1] or '')
    table.insert(reply, hash[2] or '0')
    table.insert(reply, hold)
  else
    table.insert(reply, hold)
    table.insert(reply, redis.call('hget', holders, hold) or '0')
    table.insert(reply, 'shared')
  end
end
reply[1], reply[2] = ttl, token
return reply
