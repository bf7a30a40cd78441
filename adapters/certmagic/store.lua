-- Writes a value, or deletes keys, under a fencing token.
-- KEYS: the hashes of values, of times in ms, and of the highest token of each lock; the sorted set of the keys.
-- ARGV[1]: the lock, or empty: no token. ARGV[2]: the token. ARGV[3]: "raise", "store" or "delete". ARGV[4]: the key.
-- ARGV[5]: the value.
-- Reply: the highest token; nothing was written if it is higher than ARGV[2].
-- Twice: writes the same again, or is refused.
local token = tonumber(ARGV[2])
if ARGV[1] ~= "" then
  local seen = tonumber(redis.call("HGET", KEYS[3], ARGV[1]) or "0")
  if token < seen then
    return seen
  end
  redis.call("HSET", KEYS[3], ARGV[1], ARGV[2])
end
local key = ARGV[4]
if ARGV[3] == "store" then
  local now = redis.call("TIME")
  redis.call("HSET", KEYS[1], key, ARGV[5])
  redis.call("HSET", KEYS[2], key, string.format("%.0f", now[1] * 1000 + math.floor(now[2] / 1000)))
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
