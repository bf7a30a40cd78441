-- quarantine: runs before a script that grants a lock, for clients that do not trust a new
-- server: see WithFailoverQuarantine. Such a client sends one more key and one more
-- argument, at the end, which are removed here.
--
-- KEYS[last]  hash: run_id of the process that serves, from when it does (server ms), and
--             before: the run_id of the process before it, if there was one
-- ARGV[last]  quarantine, ms
-- Reply       {-3, ms}  the server is in quarantine for ms more; nothing else is done
-- Twice       The quarantine begins once for each process.
--
-- Defines  nothing
-- include time
do
  local served, quarantine = table.remove(KEYS), tonumber(table.remove(ARGV))
  local process = string.match(redis.call('info', 'server'), 'run_id:(%x+)')
  if not process then
    return redis.error_reply('NORUNID the server does not tell its run_id in scripts')
  end
  local now = math.floor(micros() / 1000)
  local known = redis.call('hget', served, 'run_id')
  if known ~= process then
    redis.call('hset', served, 'run_id', process, 'from', now + quarantine, 'before', known or '')
  end
  local from = redis.call('hget', served, 'from')
  if tonumber(from) > now then
    return {-3, from - now}
  end
end
