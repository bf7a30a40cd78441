-- take: make a hold the holder of a free lock.
--
-- Defines  reserve(token, last, most): of tokens that are drawn for one hold, the first, and how
--          many follow that are its client's too, most at the most; last is what drawToken
--          returns.
--          take(lock, id, lease, tokens, source, now, digits): the arguments are as of
--          lock/enter; now and digits are what micros() returns, or nil. It returns what
--          reserve does
-- Memory   The token is written first: see lock/enter
-- include time
-- include token

local function reserve(token, last, most)
  if most == '0' or not last then
    return token, 0
  end
  -- Those below, down to the last: the clock does not run ahead of the time, which takes its
  -- place if its key is lost.
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
