-- release_all: end several stays in one slot, each as release or abandon does it.
--
-- KEYS[1], KEYS[2] ...  of each lock the hash and the tombstone of the stay
-- ARGV[1]  'publish', 'spublish', 'both' or 'none'
-- ARGV[2], ARGV[3], ARGV[4] ...  of each lock the stay id, the time to keep the
--          tombstone in ms (0: it needs none), and the channel
-- Reply    1   all freed
--          {1 or 0 or -1, ...}  of each lock: freed, no such lock, another's
-- Caller   Unlock of a MultiLock
-- Twice    A second run finds the stays gone and lengthens the tombstones. What
--          the first has freed it does not find: the caller puts both together.
-- Memory   Redis refuses SET only as the first write of a script: the DEL before
--          it lets it pass.
-- Replica  A demoted master refuses the HDEL too with READONLY; see release.

-- include announce
local replies = {}
for i = 1, #KEYS / 2 do -- what is no lock fails here, before anything is changed
  replies[i] = redis.call('hexists', KEYS[2 * i - 1], ARGV[3 * i - 1])
end
local all = 1
for i, mine in ipairs(replies) do
  local lock, tombstone, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i]
  if ttl ~= '0' then
    redis.call('del', tombstone)
    redis.call('set', tombstone, 1, 'px', ttl)
  end
  if mine == 1 then
    redis.call('del', lock)
    announce(ARGV[1], ARGV[3 * i + 1], '0')
  else
    redis.call('hdel', lock, '')
    replies[i] = -redis.call('exists', lock)
    all = replies
  end
end
return all
