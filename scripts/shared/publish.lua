-- publish: wake waiters. If the user of Redis is permitted to hold locks but not to publish, a script does the rest of its
-- work and reports the refusal. Waiters then poll.
--
-- Defines  announce(how, channel, payload), told(reply, heard)

local unpublished -- why Redis refused to publish

-- announce publishes on a channel. how is 'publish', 'spublish', 'both' or 'none'. It returns how many connections to this
-- server got the message.
local function announce(how, channel, payload)
  if how == 'both' then
    return announce('publish', channel, payload) + announce('spublish', channel, payload)
  elseif how == 'none' then
    return 0
  end
  local reply = redis.pcall(how, channel, payload)
  if type(reply) == 'table' then
    unpublished = unpublished or reply.err
    return 0
  end
  return reply
end

-- told returns the reply of a script that may have published: the reply itself, {reply, why
-- Redis refused to publish}, or {reply, n} if n connections got the message.
local function told(reply, heard)
  if unpublished then
    return {reply, unpublished}
  elseif heard and heard > 0 then
    return {reply, tostring(heard)}
  end
  return reply
end
