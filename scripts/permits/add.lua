-- permits/add: change how many permits a PermitSemaphore has, by a number or to one.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of this request
-- KEYS[4]  how many permits a Semaphore of this name has
-- ARGV[3]  permits to add, maybe negative
-- ARGV[4]  time to keep the record, ms
-- ARGV[5]  the most that there may be then, held ones included; and the most less than none
-- ARGV[6]  '1': there are to be so many permits, held ones included
-- Reply    1  done
--          0  refused: it would be beyond that
-- Caller   AddPermits, SetPermits
-- Twice    The record tells a copy that the first run has done it.
-- Replica  A refusal must come from a master.

-- include permits
-- include count
-- include others
local record = KEYS[3]
local n, keep, most = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
if redis.call('exists', record) == 1 then
  redis.call('zrem', held, '')
  return 1
end
local left, foreign = count(free)
if left then
  foreign = others('Semaphore', KEYS[4])
end
left = left or 0
if foreign then
  return foreign
end
local all = left + redis.call('zcard', held)
if ARGV[6] == '1' then
  n = n - all
end
if math.abs(all + n) > most then
  redis.call('zrem', held, '')
  return 0
end
redis.call('set', free, left + n)
redis.call('set', record, 1, 'px', keep)
tell(n)
return told(1)
