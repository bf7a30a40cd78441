-- permits/inspect: one consistent view of a PermitSemaphore, after what has expired is free.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- ARGV[3]  '1': with the held permits
-- Reply    {set, free, now, id, end, ...}: 1 if a number of permits is set; how many are free; the
--          time in ms; and each held permit and when it expires, ms, or NEVER
-- Caller   State, Available
-- Twice    What has expired is freed once.

-- include permits
-- include count
reclaim()
local left, foreign = count(free)
if foreign then
  return foreign
end
local reply = {left and 1 or 0, left or 0, now}
if ARGV[3] == '1' then
  each(redis.call('zrange', held, 0, -1, 'withscores'), MOST, function(...)
    for _, item in ipairs({...}) do
      table.insert(reply, item)
    end
  end)
end
return told(reply)
