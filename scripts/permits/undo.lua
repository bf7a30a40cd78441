-- permits/undo: undo what an AddPermits did, and stop its late copies.
--
-- KEYS[1..2], ARGV[1..2]  see shared/permits.lua
-- KEYS[3]  record of the page: 'more', or 'made' if there were none before; by how much; and
--          which operation had made or set the number last: see shared/setting.lua
-- KEYS[4]  see shared/setting.lua
-- KEYS[5]  mark: see shared/others.lua
-- ARGV[3]  number of the operation
-- Reply    1  undone
--          0  it had done nothing, or was undone before
-- Caller   an AddPermits that was given up
-- Twice    A second run finds the record of the first.

-- include permits
-- include record
-- include count
-- include setting
local record, latest, number = KEYS[3], KEYS[4], ARGV[3]
local what = recorded(record, number)
if what == 'late' then
  return 0
end
note(record, number, 'gone')
local added, more, before = string.match(what or '', '^(%l+) (%-?%d+) (.+)$')
more = tonumber(more or 0)
if not added or not count(free) or setSince(latest, before) then
  return 0 -- the number was deleted, or set since
end
local now = done(record, redis.pcall('incrby', free, string.format('%.0f', -more)))
if type(now) == 'table' then
  note(record, number, what)
  return now
end
if added == 'made' and now == 0 and redis.call('exists', held) == 0 then
  redis.call('del', free, KEYS[5])
end
tell(-more)
return told(1)
