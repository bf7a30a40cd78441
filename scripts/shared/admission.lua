-- admission: whether a server may vote for RedLocks. A server that restarted, or a
-- promoted replica, has another run_id than the one in its data. A server that was flushed
-- has lost its admission. In each case all its votes count as lost.
--
-- Defines  ADMITTED, UNFIT_SINCE, admission(now), mayVote(now)
-- include time

-- Admission is per prefix. These are the last keys of a request that needs it.
local ADMITTED, UNFIT_SINCE = KEYS[#KEYS - 1], KEYS[#KEYS]
local guarded = UNFIT_SINCE:find('rlock:red:since$')

-- admission returns the server's epoch, and whether it may vote. An epoch begins each time
-- that the server loses its admission; clients count the quarantine from there.
local function admission(now)
  local run = string.match(redis.call('info', 'server'), 'run_id:(%x+)') or error('INFO does not tell the run_id')
  -- A master that was demoted and promoted again has its old run_id, but the data
  -- of the master in between. If that was in quarantine, UNFIT_SINCE exists.
  if redis.call('hget', ADMITTED, 'run_id') == run and redis.call('exists', UNFIT_SINCE) == 0 then
    return run, true
  end
  redis.call('set', UNFIT_SINCE, string.format('%.0f', now), 'nx')
  return run .. '/' .. redis.call('get', UNFIT_SINCE), false
end

-- mayVote returns the value at which the counters of this server begin, or nil and the
-- reply to a request that must not run. A request of a client with a quarantine has
-- ADMITTED and UNFIT_SINCE as its last keys. Its last two arguments are the times, in µs of this server,
-- between which it may run. Outside them the clock has jumped, or this is a late copy.
-- Without now, the time is read only if it matters.
--   {-3, now, epoch}  the server may not vote
--   {-4, now}         now is outside those times
local function mayVote(now)
  if not guarded then
    return 0
  end
  now = now or micros()
  local epoch, admitted = admission(now)
  if not admitted then
    return nil, {-3, now, epoch}
  end
  if now < tonumber(ARGV[#ARGV - 1]) or now > tonumber(ARGV[#ARGV]) then
    return nil, {-4, now}
  end
  return tonumber(redis.call('hget', ADMITTED, 'floor'))
end
