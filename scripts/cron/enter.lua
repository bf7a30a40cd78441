-- cron/enter: claim a tick of a CronJob and hold its lock, unless the tick is claimed already.
--
-- KEYS[1]  lock of the tick: hash, hold id of the caller that runs -> 1
-- KEYS[2]  tombstone of this hold
-- KEYS[3]  fencing clock of the lock
-- KEYS[4]  runs: hash, tick -> its run, as in shared/cronrun; floor -> the latest tick whose run
--          was dropped
-- KEYS[5]  ticks: zset of the ticks that runs has, by time
-- ARGV[1]  hold id
-- ARGV[2]  lease, ms
-- ARGV[3]  tick: ms since 1970
-- ARGV[4]  1: wait for a run, and take it over, once, if it is lost; 0: do neither
-- ARGV[5]  retention: how long after its tick a run is kept, ms
-- ARGV[6]  number of runs to keep; more are kept only because of ARGV[7]
-- ARGV[7]  age, ms: runs of younger ticks are kept, and runs in progress until so long after their
--          end: others may wait for them, to take them over
-- ARGV[8]  how far a tick may be ahead of the server's clock, ms
-- ARGV[9]  the process of the caller, as in shared/cronrun
-- ARGV[10] least time between two ticks, ms; 0: any
-- Reply    {1, token, run}  claimed: the caller is to run
--          {2, 0, run}      it was claimed; state l if that run was lost, which may be this hold's own.
--                           In state c, another call has claimed it: request again, as the claim
--                           may be taken back
--          {3, 0, text}     the tick cannot be claimed now, or ever: why
--          {0, pttl, holder, others}  another call runs, and holds the lock for pttl ms;
--                      see shared/hash.lua
--          {-1, 0}     this hold was abandoned or is over: a late copy, nothing done
--          {-3, ms}    see shared/quarantine.lua
-- Caller   Do
-- Twice    A second run finds its own claim, and replies the same. A copy that comes after the
--          run finds its end, or the tombstone of a claim that was given up. A copy that comes
--          after the lease of its claim finds a lost run.
-- Memory   The token is written first: at its memory limit the server refuses it, and with it the
--          whole claim. A claim drops a few old runs for the one that it adds.
-- Replica  "Claimed" must come from a master: a demoted master, whose data may be old, refuses
--          the HDEL.

-- include quarantine when served
-- include time
-- include token
-- include ttl
-- include hash
-- include cronrun
local lock, tombstone, clock, runs, ticks = unpack(KEYS)
local id, lease, tick, takes = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local retention, most, young, ahead = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local apart = tonumber(ARGV[10])

local function answer(code, what)
  redis.call('hdel', lock, '')
  return {code, 0, what}
end

local function granted(run)
  return {1, tonumber(run.token), runText(run)}
end

if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
local us, digits = micros()
local now = math.floor(us / 1000)
local held = redis.call('exists', lock) == 1
local known = redis.call('hmget', runs, tick, 'floor')
local run, floor = readRun(known[1]), tonumber(known[2] or -1)
local nth = '1'
if run and goesOn(run) and not held then
  lost(run) -- others may know that already, so no late copy brings it back
  if run.id == id then
    return answer(2, runText(run))
  end
end
if run and run.id == id then
  if not goesOn(run) then
    return {-1, 0}
  end
  redis.call('hset', lock, id, '1')
  lengthen(lock, lease)
  return granted(run)
elseif held and (takes or not run) then
  return refused(lock, redis.call('pttl', lock))
elseif run then
  if held or isOver(run) or not takes or run.nth ~= '1' then
    return answer(2, runText(run))
  end
  nth = '2'
else
  if tonumber(tick) <= floor or tonumber(tick) < now - retention then
    return answer(3, 'it is too old: whether it was run is not kept any more')
  elseif tonumber(tick) > now + ahead then
    return answer(3, string.format('it is %.1f hours ahead of the clock of Redis', (tonumber(tick) - now) / 3600000))
  end
  local near = apart > 0 and redis.call('zrangebyscore', ticks, string.format('(%.0f', tick - apart), string.format('(%.0f', tick + apart), 'limit', 0, 1)[1]
  if near then
    return answer(3, string.format('a tick %.3f s away was claimed, and there have to be %.3f s between two', math.abs(tick - near) / 1000, apart / 1000))
  end
end

-- FEW is how many old runs a claim drops at most, in each of two ways, for the one that it adds. It skips
-- runs that have to be kept, at most as many as ARGV[6].
local FEW = 10

local dropped

-- isNeeded reports whether a run is to be kept though its tick is old. Runs of ticks up to the floor exist only
-- because they were in progress when newer runs were dropped.
local function isNeeded(at, old)
  return old and tonumber(old.stop) >= now - young and (goesOn(old) or tonumber(at) <= floor)
end

local function drop(before, n)
  local at = 0
  n = math.min(n, FEW)
  while n > 0 and at < most do
    local old = redis.call('zrangebyscore', ticks, '-inf', string.format('(%.0f', before), 'limit', at, n)
    if #old == 0 then
      return
    end
    for _, one in ipairs(old) do
      if isNeeded(one, readRun(redis.call('hget', runs, one))) then
        at = at + 1
      else
        redis.call('hdel', runs, one)
        redis.call('zrem', ticks, one)
        dropped, n = one, n - 1
      end
    end
  end
end

local token = drawToken(clock, us, digits)
redis.call('hset', lock, id, '1')
redis.call('pexpire', lock, lease) -- nobody has held it
drop(now - retention, FEW)
drop(now - young, redis.call('zcard', ticks) + 1 - most)
if dropped and tonumber(dropped) > floor then
  redis.call('hset', runs, 'floor', dropped)
end
run = {state = 'c', nth = nth, token = string.format('%.0f', token), start = string.format('%.0f', now), stop = string.format('%.0f', now + lease), id = id, who = ARGV[9], err = ''}
redis.call('hset', runs, tick, runText(run))
redis.call('zadd', ticks, tick, tick)
-- The keys must exist while a tick is not too old, or its run is needed. They get a little more time, so that
-- not each claim has to renew it.
local life = math.max(retention + math.max(tonumber(tick) - now, 0), lease + young)
if redis.call('pttl', runs) < life then
  life = string.format('%.0f', life + math.floor(retention / 100))
  redis.call('pexpire', runs, life)
  redis.call('pexpire', ticks, life)
end
return granted(run)
