-- lock/renew_many: lengthen the leases of several holds, each as lock/renew does.
--
-- KEYS[1], KEYS[2], ...  lock hashes
-- ARGV[1], ARGV[2], ...  for each the hold id and the lease, ms
-- Reply    for each the reply of lock/renew, or nil: Redis refused it, and it has to be requested
--          alone by lock/renew. The others are renewed
-- Caller   the watchdog
-- Twice    As lock/renew.
-- Replica  As lock/renew: nil for a hold that is not there.

-- include renewal
local replies = {}
for i, lock in ipairs(KEYS) do
  local ok, reply = pcall(renewed, lock, ARGV[2 * i - 1], tonumber(ARGV[2 * i]))
  replies[i] = ok and reply
end
return replies
