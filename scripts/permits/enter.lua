-- permits/enter: take permits of a PermitSemaphore.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  tombstone of this hold
-- KEYS[4]  mark: see shared/others.lua
-- KEYS[5]  see shared/setting.lua; absent if there is no ARGV[7]
-- ARGV[3]  base of the hold's permits
-- ARGV[4]  how many it takes
-- ARGV[5]  lease, ms
-- ARGV[6]  channel on which to publish how many are left; '' or absent if the client expects no
--          other waiters
-- ARGV[7]  how many permits to set if no number is set; absent: none
-- Reply    {1, free, rest}   taken: how many more are free, and for how long no held permit
--                            expires, ms
--          {0, rest, holder, others, all, free}  too few are free: poll again within rest
--                            ms (-1: none expires). The permit that expires first, or '',
--                            how many others are held, and how many permits there are
--          {-1, 0}           this hold was abandoned: a late copy, nothing done
--          {-3, ms}          see shared/quarantine.lua
--          {-5, 0}           no number of permits is set, and there is no ARGV[7]
--          {-6, ...}         as 0, and there are too few even if all were free
-- Caller   Acquire, TryAcquire of a PermitSemaphore
-- Twice    The ids show whether the hold has its permits already. A copy that comes after
--          the hold has ended finds its tombstone, which the client leaves if a copy may be
--          under way.
-- Memory   DECRBY, the first write of a grant, is refused at the memory limit.

-- include quarantine when served
-- include permits
-- include mark
-- include record
-- include setting
local tombstone = KEYS[3]
local base, n, lease = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local function nearest()
  local first = redis.call('zrange', held, 0, 0, 'withscores')
  return first[1], tonumber(first[2] or NEVER)
end

if redis.call('exists', tombstone) == 1 then
  return {-1, 0}
end
-- A lease that began in the middle of a ms lasts until the middle of its last.
local ends = now + lease + 1
local id, at = nearest()
if at <= now then
  reclaim(n)
  id, at = nearest()
end
local there, first = found(base, n)
if #there > 0 and #there < n then
  giveBack(there) -- a copy came so late that some of the permits have expired
  there = {}
  id, at = nearest() -- it may have been one of these
end
local left, foreign, mark = marked(free, KEYS[4])
foreign = foreign or others('PermitSemaphore', left and mark)
if foreign then
  return foreign
elseif #there == n then
  if first < ends then
    put(base, n, ends)
  end
  return told({1, left or 0, rest(at)})
elseif not left and ARGV[7] then
  left = ARGV[7] - redis.call('zcard', held)
  redis.call('set', free, string.format('%.0f', left))
  redis.call('set', KEYS[4], 'PermitSemaphore')
  setting(KEYS[5], tombstone, '0')
  tell(left)
elseif not left then
  redis.call('zrem', held, '') -- a demoted master refuses: its data may be old
  return told({-5, 0})
end
if left < n then
  local all = redis.call('zcard', held)
  return told({left + all < n and -6 or 0, rest(at), id or '', math.max(all - 1, 0), left + all, left})
end
redis.call('decrby', free, n)
put(base, n, ends)
local ttl = redis.call('pttl', free)
if ttl > 0 then
  redis.call('pexpire', held, ttl)
end
if (ARGV[6] or '') ~= '' then
  announce(ARGV[2], ARGV[6], left - n)
end
return told({1, left - n, rest(math.min(at, ends))})
