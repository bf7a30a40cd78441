-- lock/serve: let a new server grant locks immediately.
--
-- KEYS[1]  hash: which process serves; see shared/quarantine.lua
-- Reply    1  it serves
--          0  another process has served before: not a new deployment
-- Caller   Client.BootstrapServer
-- Twice    The second run finds the process already noted.

local served = KEYS[1]
local process = string.match(redis.call('info', 'server'), 'run_id:(%x+)')
if not process then
  return redis.error_reply('NORUNID the server does not tell its run_id in scripts')
end
local known = redis.call('hmget', served, 'run_id', 'before')
if known[1] and known[1] ~= process or known[2] and known[2] ~= '' then
  return 0
end
redis.call('hset', served, 'run_id', process, 'from', 0)
return 1
