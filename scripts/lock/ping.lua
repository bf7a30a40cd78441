-- lock/ping: whether locks can be acquired here, as far as the server decides that.
--
-- KEYS[1]  a key that nothing uses
-- ARGV[1]  '1': write it, for replicas to confirm
-- and one key and one argument at the end, for a client with a quarantine: see
-- shared/quarantine.lua
-- Reply    1
-- Caller   Ping, Check
-- Twice    The key ends by itself, and tells nobody anything.
-- Memory   At its memory limit Redis refuses the SET, as it refuses an acquire.
-- Replica  It refuses the SET, which counts as a write though it finds no key to replace.

-- include quarantine when served
if ARGV[1] == '1' then
  redis.call('set', KEYS[1], '', 'px', 1000)
else
  redis.call('set', KEYS[1], '', 'xx', 'px', 1)
end
return 1
