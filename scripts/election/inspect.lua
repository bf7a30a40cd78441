-- election/inspect: the leader of an Election, and the value that it proclaims.
--
-- KEYS[1..6]  see shared/queuekeys.lua
-- Reply    see lock/inspect; with a leader, its value follows at the end
-- Caller   Leader, Observe, State, Watch
-- Twice    Reads only.

-- include queue
local waiters = redis.call('zcard', alone)
local at = redis.call('zscore', ends, 'exclusive')
if not at or tonumber(at) < now then
  return {0, 0, waiters}
end
local hash = redis.call('hmget', holders, 'exclusive', 'count', 'token', 'value')
return {at - now, tonumber(hash[3] or 0), waiters, hash[1] or '', hash[2] or '0', 'exclusive', hash[4] or ''}
