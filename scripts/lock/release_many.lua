-- lock/release_many: end several holds for good, each as lock/release does.
--
-- KEYS[1], KEYS[2], ...  lock hashes
-- ARGV[1], ARGV[2], ARGV[3], ARGV[4], ...  for each the arguments of lock/release
-- Reply    for each the reply of lock/release, or nil: nothing was done for it, and it has
--          to be requested alone by lock/release
-- Caller   Unlock of many callers
-- Twice    As lock/release: the reply for a copy is nil, and lock/release handles it.
-- Replica  As lock/release: nil for a hold that does not exist.

-- include publish

local function release(lock, id, entries, channel, how)
  if entries ~= '0' or redis.call('hdel', lock, id) == 0 then
    return false
  end
  unpublished = nil -- of the one before
  return told(1, announce(how, channel, '0'))
end

local replies = {}
for i, lock in ipairs(KEYS) do
  local a = 4 * i
  local ok, reply = pcall(release, lock, ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], ARGV[a])
  replies[i] = ok and reply
end
return replies
