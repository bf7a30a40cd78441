-- lock/release_many: end several holds for good, each as lock/release does.
--
-- KEYS[1], KEYS[2], ...  lock hashes
-- ARGV[1], ARGV[2], ARGV[3], ARGV[4], ...  for each the arguments of lock/release
-- Reply    for each what lock/release replies, or nil: nothing was done for it, and
--          lock/release alone will say why
-- Caller   Unlock of many callers
-- Twice    As lock/release, which is left what a copy finds.
-- Replica  As lock/release: nil for a hold that is not there.

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
