-- publish: wake waiters. A user of Redis may be permitted to hold locks but not to publish.
-- Then a script does the rest of its work and reports that. Waiters look by themselves.
--
-- Defines  announce(how, channel, payload), told(reply)

local unpublished -- why Redis refused to publish

local function send(command, channel, payload)
  local reply = redis.pcall(command, channel, payload)
  unpublished = unpublished or type(reply) == 'table' and reply.err
end

-- announce publishes on a channel. how is 'publish', 'spublish', 'both' or 'none'.
local function announce(how, channel, payload)
  if how == 'both' then
    send('publish', channel, payload)
    send('spublish', channel, payload)
  elseif how ~= 'none' then
    send(how, channel, payload)
  end
end

-- told returns the reply of a script that may have published: the reply itself, or
-- {reply, why Redis refused to publish}.
local function told(reply)
  if unpublished then
    return {reply, unpublished}
  end
  return reply
end
