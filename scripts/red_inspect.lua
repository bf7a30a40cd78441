-- red_inspect: a look at a node's vote.
--
-- KEYS[1]  record
-- Reply    {ms, attempt, token}  for how long who has it; token 0: not (yet) a hold
--          {0, '', 0}            nobody
-- Caller   IsLocked, State, HeldBy, Watch of a RedLock
-- Twice    Reads only.

-- include red_standing
-- include red
local held = current()
if not held then
  return {0, '', 0}
end
return {left(), held, tonumber(redis.call('hget', record, 'token') or 0)}
