-- publish: wake those who wait. A user may hold locks and not be permitted to publish:
-- a script does its work all the same, and says so. Waiters then look by themselves.
-- Defines  announce(how, channel, payload), told(reply)

local unpublished -- why Redis refused to publish

-- announce tells those who listen to a channel. how is 'publish', 'spublish', 'both' or
-- 'none'.
local function announce(how, channel, payload)
  for _, command in ipairs({'publish', 'spublish'}) do
    if how == command or how == 'both' then
      local reply = redis.pcall(command, channel, payload)
      unpublished = unpublished or type(reply) == 'table' and reply.err
    end
  end
end

-- told is the reply of a script that may have announced something: the reply itself, or
-- {reply, why nothing was published}.
local function told(reply)
  if unpublished then
    return {reply, unpublished}
  end
  return reply
end
