-- announce: tell those who listen to a channel; how is 'publish', 'spublish',
-- 'both' or 'none'. A user may hold locks and not be permitted to publish: the
-- script does its work all the same, and says so. Waiters then look by themselves.
local unpublished

local function announce(how, channel, payload)
  for _, command in ipairs({'publish', 'spublish'}) do
    if how == command or how == 'both' then
      local reply = redis.pcall(command, channel, payload)
      unpublished = unpublished or type(reply) == 'table' and reply.err
    end
  end
end

-- What follows the line that includes this is the body of a function. Its reply is
-- that of the script, or {reply, why nothing was published}.
local function operation()
-- include the rest
end
local reply = operation()
if unpublished then
  return {reply, unpublished}
end
return reply
