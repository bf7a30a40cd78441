-- Writes a value, or deletes keys, under a fencing token.
-- KEYS: the hashes of values, of times in ms, and of the highest token of each lock; the sorted set of the keys; that of
-- the domain and the name of each lock with a token, by the time at which it was raised.
-- ARGV[1]: the lock, or empty: no token. ARGV[2]: the token. ARGV[3]: "raise", "store" or "delete". ARGV[4]: the key.
-- ARGV[5]: the value. ARGV[6]: the domain of the lock.
-- Reply: the highest token; nothing was written if it is higher than ARGV[2].
-- Twice: writes the same again, or is refused.
local week = 7 * 24 * 3600 * 1000
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- there reports whether an issuer has a key below the domain.
local function there(domain)
  local from = "[certificates/"
  while true do
    local first = redis.call("ZRANGEBYLEX", KEYS[4], from, "(certificates0", "LIMIT", 0, 1)[1]
    local issuer = first and string.match(first, "^certificates/([^/]*)")
    if not issuer then
      return false
    end
    local path = "certificates/" .. issuer .. "/" .. domain
    if redis.call("ZRANGEBYLEX", KEYS[4], "[" .. path .. "/", "(" .. path .. "0", "LIMIT", 0, 1)[1] then
      return true
    end
    from = "[certificates/" .. issuer .. "0"
  end
end

local token = tonumber(ARGV[2])
if ARGV[1] ~= "" then
  local seen = tonumber(redis.call("HGET", KEYS[3], ARGV[1]) or "0")
  if token < seen then
    return seen
  end
  redis.call("HSET", KEYS[3], ARGV[1], ARGV[2])
  redis.call("ZADD", KEYS[5], string.format("%.0f", now), ARGV[6] .. "\n" .. ARGV[1])
  -- After a week no write under an old token is on its way any more. While there is something to overwrite, it stays
  -- all the same.
  for _, old in ipairs(redis.call("ZRANGEBYSCORE", KEYS[5], "-inf", string.format("%.0f", now - week), "LIMIT", 0, 10)) do
    local domain, lock = string.match(old, "^([^\n]*)\n(.*)$")
    if there(domain) then
      redis.call("ZADD", KEYS[5], string.format("%.0f", now), old)
    else
      redis.call("HDEL", KEYS[3], lock)
      redis.call("ZREM", KEYS[5], old)
    end
  end
end
local key = ARGV[4]
if ARGV[3] == "store" then
  redis.call("HSET", KEYS[1], key, ARGV[5])
  redis.call("HSET", KEYS[2], key, string.format("%.0f", now))
  redis.call("ZADD", KEYS[4], 0, key)
elseif ARGV[3] == "delete" then
  -- "0" is the character after the slash: all that is below the key.
  local below = redis.call("ZRANGEBYLEX", KEYS[4], "[" .. key .. "/", "(" .. key .. "0")
  below[#below + 1] = key
  for _, one in ipairs(below) do
    redis.call("HDEL", KEYS[1], one)
    redis.call("HDEL", KEYS[2], one)
    redis.call("ZREM", KEYS[4], one)
  end
end
return token
