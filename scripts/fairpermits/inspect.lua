-- fairpermits/inspect: one consistent view of a PermitSemaphore WithFairness.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- ARGV[1]  '1': with the holds
-- Reply    {set, free, now, waiters, hold id, permits, end, ...}: 1 if a number of
--          permits is set; how many are free, including permits of expired holds; the time in ms; how many
--          wait; and each hold
-- Caller   State, Available
-- Twice    Reads only.

-- include permitqueue
local left = free()
for _, hold in ipairs(redis.call('zrangebyscore', ends, '-inf', below(now))) do
  left = left + (redis.call('hget', state, hold) or 0)
end
local reply = {redis.call('hexists', state, 'total'), left, now, redis.call('zcard', queue)}
if ARGV[1] == '1' then
  local holds = redis.call('zrangebyscore', ends, string.format('%.0f', now), '+inf', 'withscores')
  for i = 1, #holds, 2 do
    table.insert(reply, holds[i])
    table.insert(reply, redis.call('hget', state, holds[i]) or '0')
    table.insert(reply, holds[i + 1])
  end
end
return reply
