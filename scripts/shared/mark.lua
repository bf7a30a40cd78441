-- mark: reads a number, and its mark, which shows the type of the number: see others.lua.
--
-- Defines  marked(key, beside)
-- include count
-- include others

-- marked is count, and returns the mark at the second key too, or false.
local function marked(key, beside)
  local both = redis.call('mget', key, beside)
  local n, foreign
  if both[1] then
    n, foreign = parsed(both[1])
  else
    n, foreign = count(key) -- MGET does not tell another type from nothing
  end
  return n, foreign, both[2]
end
