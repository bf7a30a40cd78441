-- lock/glance: whether locks are still held, for the waiters of a client.
--
-- KEYS[1], KEYS[2], ...  lock hashes
-- Reply    for each, in order: {0, pttl, holder, others}, see lock/enter; or 0: a waiter
--          has to poll by lock/enter
-- Caller   Lock, for waiters that have not polled for a while
-- Twice    Reads only.

-- include hash
local replies = {}
for i, lock in ipairs(KEYS) do
  local rest = redis.call('pttl', lock)
  local reply = rest ~= -2 and refused(lock, rest)
  replies[i] = reply and not reply.err and reply or 0
end
return replies
