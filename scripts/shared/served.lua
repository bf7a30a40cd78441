-- served: what stands before a script that acquires, for clients that do not trust
-- a server which is new: see WithFailoverQuarantine. It takes away the last key and
-- argument, which are its own, and the script finds those that it knows.
--
-- KEYS[last]  hash: the process that serves, from when (server ms), and the process
--             that served before, if there was one
-- ARGV[last]  quarantine, ms
-- Reply       {-3, ms}  in quarantine for so long; nothing else is done
-- Twice       The quarantine begins once for each process.
local served, quarantine = table.remove(KEYS), tonumber(table.remove(ARGV))
local process = string.match(redis.call('info', 'server'), 'run_id:(%x+)')
if not process then
  return redis.error_reply('NORUNID the server does not tell its run_id in scripts')
end
local clock = redis.call('time')
local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local known = redis.call('hget', served, 'run_id')
if known ~= process then
  redis.call('hset', served, 'run_id', process, 'from', ms + quarantine, 'before', known or '')
end
if tonumber(redis.call('hget', served, 'from')) > ms then
  return {-3, redis.call('hget', served, 'from') - ms}
end
