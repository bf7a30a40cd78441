-- lock/request_release: ask holders to release a lock.
--
-- KEYS[1], KEYS[2], ...  for each hold the key of the request
-- ARGV[1]  time to keep a request, ms
-- ARGV[2]  channel on which the holders listen
-- ARGV[3]  'publish', 'spublish' or 'both'
-- Reply    1
-- Caller   RequestRelease of all types; of a RedLock, on all nodes
-- Twice    A request names the holds, whose ids are never used again. So a second run, even
--          a late one, has no effect on the next holder. A holder reacts to a request once.
-- Memory   The first DEL lets the SETs pass on a server at its memory limit. The keys are
--          written before the message, because a holder that gets it polls its key.

-- include publish
local stands, channel, how = ARGV[1], ARGV[2], ARGV[3]
redis.call('del', KEYS[1])
for _, asked in ipairs(KEYS) do
  redis.call('set', asked, 1, 'px', stands)
end
announce(how, channel, '1')
return told(1)
