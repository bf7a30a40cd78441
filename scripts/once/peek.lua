-- once/peek: the result of a Once, or why its last run has failed.
--
-- KEYS[1]  result: hash, value -> what the caller that ran returned, token -> its token; or
--          failed -> the server ms in which a run failed, error -> its text
-- Reply    {1, 0, value}  the result
--          {2, ms, text}  no result, and a run has failed ms ago: its error
--          {0, 0}         neither
-- Caller   Do, before each request for the lock, and when it has the lock; Peek
-- Twice    Reads only.

-- include time
local value, failed, text = unpack(redis.call('hmget', KEYS[1], 'value', 'failed', 'error'))
if value then
  return {1, 0, value}
end
if failed then
  local ago = math.floor(micros() / 1000) - failed
  if ago >= 0 then -- otherwise the clock has gone back, and nothing is known
    return {2, ago, text}
  end
end
return {0, 0}
