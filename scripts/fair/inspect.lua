-- fair/inspect: one consistent view of a fair lock and its line.
--
-- KEYS[1]  lock hash
-- KEYS[2]  queue
-- Reply    see lock/inspect; the token is 0
-- Caller   State, Watch
-- Twice    Reads only.

-- include whole
local lock, queue = KEYS[1], KEYS[2]
local fields, reply = all(lock)
if reply then
  return reply
end
return report(fields, redis.call('pttl', lock), 0, redis.call('llen', queue))
