-- lock/ping: whether locks can be acquired here, as far as the server decides that.
--
-- KEYS[1]  a key that no lock uses
-- KEYS[2]  another such key, for ARGV[2]
-- ARGV[1]  '1': write it, for replicas to confirm
-- ARGV[2]  '1': the user has to be permitted what an acquire of a free Lock does
-- and one key and one argument at the end, for a client with a quarantine: see
-- shared/quarantine.lua
-- Reply    1
-- Caller   Ping, Check
-- Twice    The key expires, or ends with the script, and means nothing.
-- Memory   At its memory limit Redis refuses the SET, as it refuses an acquire. The SET comes first:
--          Redis does not refuse a write that follows another one.
-- Replica  It refuses the SET, which counts as a write though it finds no key to replace.

-- include quarantine when served
if ARGV[1] == '1' then
  redis.call('set', KEYS[1], '', 'px', 1000)
else
  redis.call('set', KEYS[1], '', 'xx', 'px', 1)
end
if ARGV[2] == '1' then
  local hash = KEYS[2]
  redis.call('time')
  redis.call('exists', hash)
  redis.call('pexpire', hash, 0) -- first while there is no key: else one could stay
  redis.call('hset', hash, 'ping', '1')
  redis.call('pexpire', hash, 0) -- deletes it
end
return 1
