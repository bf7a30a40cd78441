-- listeners: how many connections are subscribed to the releases of a lock whose waiters Redis does not keep.
--
-- Defines  listeners(channel, how): -1 less that number, as in the replies of inspect scripts; -1 too if
--          the number is not known: how is 'none' or absent, or the user lacks the permission

local function listeners(channel, how)
  local most = 0
  local function count(reply)
    most = math.max(most, not reply.err and tonumber(reply[2]) or 0)
  end
  if how == 'publish' or how == 'both' then
    count(redis.pcall('pubsub', 'numsub', channel))
  end
  if how == 'spublish' or how == 'both' then
    count(redis.pcall('pubsub', 'shardnumsub', channel))
  end
  return -1 - most
end
