-- red_standing: whether a server may vote for RedLocks. One that restarted, or is
-- a replica that was promoted, has another run_id than the data says, and one that
-- was flushed has lost its admission; whatever it may have lost counts as lost.
local ADMITTED, UNFIT_SINCE = 'rlock:red:admitted', 'rlock:red:since'

-- standing returns the server's epoch, and whether it may vote. Each time that it
-- must not begins a new epoch, which says what clients count the quarantine from.
local function standing(now)
  local run = string.match(redis.call('info', 'server'), 'run_id:(%x+)') or error('INFO does not tell the run_id')
  -- A master that was demoted and promoted again has its old run_id, but the data
  -- of the one in between: where that was in quarantine.
  if redis.call('hget', ADMITTED, 'run_id') == run and redis.call('exists', UNFIT_SINCE) == 0 then
    return run, true
  end
  redis.call('set', UNFIT_SINCE, string.format('%.0f', now), 'nx')
  return run .. '/' .. redis.call('get', UNFIT_SINCE), false
end
