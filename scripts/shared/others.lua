-- others: the type of a number, as far as its additional keys show it: a Semaphore, a PermitSemaphore and a CountDownLatch
-- with one name would use the same number. The type of this package that makes the number leaves a mark: for a Semaphore
-- the value in total.lua, otherwise the name of the type. A mark without a number means nothing. For a number that
-- Redisson has made, only held permits show the type.
--
-- Defines  others(type, mark, held)

-- others returns the reply if the mark of a number shows another type. held is the key of the held permits of a
-- PermitSemaphore, or nil where they do not matter.
local function others(type, mark, held)
  local is = type
  if mark then
    is = string.match(mark, '^%a+$') or 'Semaphore'
  elseif held and redis.call('exists', held) == 1 then
    is = 'PermitSemaphore'
  end
  if is ~= type then
    return redis.error_reply('FOREIGN it is a ' .. is)
  end
end
