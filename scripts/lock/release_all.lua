-- lock/release_all: end several holds, a hundred at most, of one server or slot, each like lock/release or lock/abandon.
--
-- KEYS[1], KEYS[2], ...  for each lock its hash and the tombstone of the hold
-- ARGV[1], ARGV[2], ARGV[3], ...  for each lock the hold id, the time to keep the
--          tombstone in ms (0: none is needed), and the channel
-- ARGV[last]  'publish', 'spublish', 'both' or 'none'
-- Reply    1   all freed
--          {1 or 0 or -1, ...}  for each lock: freed, no such lock, held by others
-- Caller   Unlock of a MultiLock
-- Twice    A second run finds the holds gone and lengthens the tombstones. It does not
--          report holds that the first run has ended: the caller combines both replies.
-- Memory   Redis refuses SET only as the first write of a script: the DEL before it lets
--          it pass.
-- Replica  "Not there" must come from a master: see lock/release.

-- include publish
local how = ARGV[#ARGV]
for i = 1, #KEYS, 2 do
  redis.call('hlen', KEYS[i]) -- a key that is no hash fails here, before any write
end
local all, replies = 1, {}
for i = 1, #KEYS / 2 do
  local lock, tombstone = KEYS[2 * i - 1], KEYS[2 * i]
  local id, keep, channel = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  if keep ~= '0' then
    redis.call('del', tombstone)
    redis.call('set', tombstone, 1, 'px', keep)
  end
  replies[i] = redis.call('hdel', lock, id)
  if replies[i] == 1 then
    announce(how, channel, '0')
  else
    replies[i] = -redis.call('exists', lock)
    all = replies
  end
end
return told(all)
