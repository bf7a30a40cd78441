-- lock/release_all: end several holds in one slot, each as lock/release or lock/abandon
-- does it.
--
-- KEYS[1], KEYS[2] ...  of each lock the hash and the tombstone of the hold
-- ARGV[1], ARGV[2], ARGV[3] ...  of each lock the hold id, the time to keep the
--          tombstone in ms (0: it needs none), and the channel
-- ARGV[last]  'publish', 'spublish', 'both' or 'none'
-- Reply    1   all freed
--          {1 or 0 or -1, ...}  of each lock: freed, no such lock, another's
-- Caller   Unlock of a MultiLock
-- Twice    A second run finds the holds gone and lengthens the tombstones. What
--          the first has freed it does not find: the caller puts both together.
-- Memory   Redis refuses SET only as the first write of a script: the DEL before
--          it lets it pass.
-- Replica  "Not there" must come from a master: see lock/release.

-- include publish
local how = ARGV[#ARGV]
local replies = {}
for i = 1, #KEYS / 2 do -- what is no lock fails here, before anything is changed
  local lock, id = KEYS[2 * i - 1], ARGV[3 * i - 2]
  replies[i] = redis.call('hexists', lock, id)
end
local all = 1
for i, mine in ipairs(replies) do
  local lock, tombstone = KEYS[2 * i - 1], KEYS[2 * i]
  local keep, channel = ARGV[3 * i - 1], ARGV[3 * i]
  if keep ~= '0' then
    redis.call('del', tombstone)
    redis.call('set', tombstone, 1, 'px', keep)
  end
  if mine == 1 then
    redis.call('del', lock)
    announce(how, channel, '0')
  else
    redis.call('hdel', lock, '')
    replies[i] = -redis.call('exists', lock)
    all = replies
  end
end
return told(all)
