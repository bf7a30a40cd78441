-- Notes that the answer of a request is kept, and takes the oldest that are too many out of the index.
-- KEYS: the sorted set of the answers of a principal, by the time in ms at which each was noted.
-- ARGV[1]: the name of the answer. ARGV[2]: how long it is kept, in ms. ARGV[3]: how many are kept.
-- Reply: the names of those that are too many, and their times.
-- Twice: if the first reply was lost, the answers that it names stay for their time.
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", string.format("%.0f", now - tonumber(ARGV[2])))
redis.call("ZADD", KEYS[1], string.format("%.0f", now), ARGV[1])
redis.call("PEXPIRE", KEYS[1], ARGV[2])
local over = redis.call("ZCARD", KEYS[1]) - tonumber(ARGV[3])
if over <= 0 then
  return {}
end
return redis.call("ZPOPMIN", KEYS[1], string.format("%.0f", math.min(over, 100)))
