-- red_standing: whether a server may vote for RedLocks. One that restarted has
-- another run_id, and one that was flushed has lost its admission; whatever either
-- may have lost counts as lost.
local ADMITTED, UNFIT_SINCE = 'rlock:red:admitted', 'rlock:red:since'

-- standing returns the server's epoch, and whether it may vote. Each time that it
-- must not begins a new epoch, which says what clients count the quarantine from.
local function standing(now)
  local run = string.match(redis.call('info', 'server'), 'run_id:(%x+)')
  if redis.call('hget', ADMITTED, 'run_id') == run then
    return run, true
  end
  redis.call('set', UNFIT_SINCE, string.format('%.0f', now), 'nx')
  return run .. '/' .. redis.call('get', UNFIT_SINCE), false
end
