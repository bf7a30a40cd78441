-- announce: tell those who listen to a channel; how is 'publish', 'spublish',
-- 'both' or 'none'.
local function announce(how, channel, payload)
  if how == 'publish' or how == 'both' then
    redis.call('publish', channel, payload)
  end
  if how == 'spublish' or how == 'both' then
    redis.call('spublish', channel, payload)
  end
end
