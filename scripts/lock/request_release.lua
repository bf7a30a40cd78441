-- lock/request_release: ask holders to release a lock.
--
-- KEYS[1]  and more: for each of the holds, the key that says that its holder was asked
-- ARGV[1]  how long a request stands, ms
-- ARGV[2]  channel on which the holders listen
-- ARGV[3]  'publish', 'spublish' or 'both'
-- Reply    1
-- Caller   RequestRelease of all types; of a RedLock, on all nodes
-- Twice    A request names the holds, whose ids are never used again. So a second run, even
--          a late one, changes nothing for the next holder. To this one it is news once.
-- Memory   The first DEL lets the SETs pass on a server at its memory limit. The keys are
--          there before the message: a holder who is told looks for its key.

-- include publish
local stands, channel, how = ARGV[1], ARGV[2], ARGV[3]
redis.call('del', KEYS[1])
for _, asked in ipairs(KEYS) do
  redis.call('set', asked, 1, 'px', stands)
end
announce(how, channel, '1')
return told(1)
