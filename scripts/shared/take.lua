-- take: make a hold the holder of a free lock.
--
-- Defines  reserve(token, last, most): the first of the tokens that are drawn for one hold, and
--          how many of the next tokens, at most most, belong to its client too; token and last
--          are the results of drawToken.
--          take(lock, id, lease, tokens, source, now, digits): the arguments are as in
--          lock/enter; now and digits are the results of micros(), or nil. It returns the
--          results of reserve
-- Memory   The token is written first: see lock/enter
-- include time
-- include token

local function reserve(token, last, most)
  if most == '0' or not last then
    return token, 0
  end
  -- Take the free tokens below, down to the last one given: so the clock does not run ahead of the time, which
  -- replaces it if its key is lost.
  local n = math.min(tonumber(most), token - last - 1)
  return token - n, n
end

local function take(lock, id, lease, tokens, source, now, digits)
  local token, n = nil, 0
  if source == 'counter' then
    token = redis.call('incr', tokens)
  else
    if not now then
      now, digits = micros()
    end
    local last
    token, last = drawToken(tokens, now, digits)
    token, n = reserve(token, last, source)
  end
  redis.call('hset', lock, id, '1')
  redis.call('pexpire', lock, lease)
  return token, n
end
