-- quorum/quarantined: whether a node is in quarantine, without a change.
--
-- KEYS[1]  hash: which process may vote; see shared/admission.lua
-- KEYS[2]  since when another process may not vote
-- Reply    ''     the node may vote
--          epoch  it may not; see shared/admission.lua. '?' if it got no request since it lost its admission
-- Caller   Client.Check
-- Twice    It reads only.

local admitted = KEYS[1]
local noted = redis.call('get', KEYS[2])
local run = string.match(redis.call('info', 'server'), 'run_id:(%x+)') or error('INFO does not tell the run_id')
if noted then
  return run .. '/' .. noted
end
return redis.call('hget', admitted, 'run_id') == run and '' or '?'
