-- others: what a number is, as far as its additional keys show: Semaphore, PermitSemaphore and
-- CountDownLatch of one name would use one number. What of this package has made it leaves a mark,
-- which is what total.lua says for a Semaphore, and for the others the name of the type. While
-- there is no number, a mark says nothing. Of what Redisson has made, only permits that are held
-- tell.
--
-- Defines  others(type, mark, held)

-- others is the reply if a number, as its mark says, belongs to another type. held are the held
-- permits of a PermitSemaphore, or nil where they do not matter.
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
