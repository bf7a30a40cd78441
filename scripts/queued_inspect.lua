-- queued_inspect: one consistent look at a lock with a queue of its own.
--
-- KEYS[1] to KEYS[6]  see queued
-- Reply    {waiters, rest of the longest lease in ms, token, owner, count, mode,
--          owner, count, mode, ...}; the token is 0 if no hold is exclusive
-- Caller   State, Watch
-- Twice    Reads only.

-- include signs
-- include queued
local waiters = redis.call('zcard', alone) + redis.call('zcard', together)
local reply = {waiters, 0, 0}
local holds = redis.call('zrangebyscore', ends, string.format('%.0f', now), '+inf', 'withscores')
for i = 1, #holds, 2 do
  local hold, at = holds[i], tonumber(holds[i + 1])
  reply[2] = math.max(reply[2], at - now)
  if hold == 'exclusive' then
    local hash = redis.call('hmget', holders, 'exclusive', 'count', 'token')
    reply[3] = tonumber(hash[3] or 0)
    table.insert(reply, hash[1] or '')
    table.insert(reply, tonumber(hash[2] or 0))
    table.insert(reply, hold)
  else
    table.insert(reply, hold)
    table.insert(reply, tonumber(redis.call('hget', holders, hold) or 0))
    table.insert(reply, 'shared')
  end
end
return reply
