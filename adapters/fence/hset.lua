-- Writes fields of a hash under a fencing token.
-- KEYS[1]: the hash. ARGV[1]: the token. ARGV[2...]: fields and values.
-- Reply: the highest token; nothing was written if it is higher than ARGV[1].
-- Twice: writes the same again, or is refused.
local seen = tonumber(redis.call("HGET", KEYS[1], "token") or "0")
local token = tonumber(ARGV[1])
if token < seen then
  return seen
end
redis.call("HSET", KEYS[1], "token", ARGV[1])
for i = 2, #ARGV, 2 do
  redis.call("HSET", KEYS[1], ARGV[i], ARGV[i + 1])
end
return token
