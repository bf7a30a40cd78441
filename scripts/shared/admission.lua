-- admission: whether a server may vote for RedLocks. One that restarted, or is a replica
-- that was promoted, has another run_id than the data says, and one that was flushed has
-- lost its admission; whatever it may have lost counts as lost.
-- Defines  ADMITTED, UNFIT_SINCE, admission(now), mayVote(now)

local ADMITTED, UNFIT_SINCE = 'rlock:red:admitted', 'rlock:red:since'

-- admission returns the server's epoch, and whether it may vote. Each time that it
-- must not begins a new epoch, which says what clients count the quarantine from.
local function admission(now)
  local run = string.match(redis.call('info', 'server'), 'run_id:(%x+)') or error('INFO does not tell the run_id')
  -- A master that was demoted and promoted again has its old run_id, but the data
  -- of the one in between: where that was in quarantine.
  if redis.call('hget', ADMITTED, 'run_id') == run and redis.call('exists', UNFIT_SINCE) == 0 then
    return run, true
  end
  redis.call('set', UNFIT_SINCE, string.format('%.0f', now), 'nx')
  return run .. '/' .. redis.call('get', UNFIT_SINCE), false
end

-- mayVote returns what the counters of this server begin at, or nil and the reply to
-- a request that it must not obey. A request of a client with a quarantine has two
-- more arguments at the end, and ADMITTED as its last key: the times, in µs of this
-- server, between which it may run. Outside them the clock has jumped, or this is
-- a late copy.
--   {-3, now, epoch}  the server may not vote
--   {-4, now}         now is outside those times
local function mayVote(now)
  if KEYS[#KEYS] ~= ADMITTED then
    return 0
  end
  local epoch, admitted = admission(now)
  if not admitted then
    return nil, {-3, now, epoch}
  end
  if now < tonumber(ARGV[#ARGV - 1]) or now > tonumber(ARGV[#ARGV]) then
    return nil, {-4, now}
  end
  return tonumber(redis.call('hget', ADMITTED, 'floor'))
end
