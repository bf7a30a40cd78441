-- fairpermits/undo: undo what an AddPermits of a PermitSemaphore WithFairness did, and stop its
-- late copies.
--
-- KEYS[1..5]  see shared/permitqueue.lua
-- KEYS[6]  record of the page: 'more', or 'made' if there were none before; by how much; and
--          which operation had made or set the number last: see shared/setting.lua
-- KEYS[7]  see shared/setting.lua
-- ARGV[1]  number of the operation
-- ARGV[2]  waiter lease, ms
-- ARGV[3]  prefix of the channels of clients with waiters
-- ARGV[4]  'publish', 'spublish', 'both' or 'none'
-- ARGV[5]  channel of waiters that need more permits than exist
-- Reply    1  undone
--          0  it had done nothing, or was undone before
-- Caller   an AddPermits that was given up
-- Twice    A second run finds the record of the first.

-- include permitqueue
-- include record
-- include setting
local record, latest, number, term = KEYS[6], KEYS[7], ARGV[1], tonumber(ARGV[2])
local what = recorded(record, number)
if what == 'late' then
  return 0
end
note(record, number, 'gone')
local added, more, before = string.match(what or '', '^(%l+) (%-?%d+) (.+)$')
more = tonumber(more or 0)
if not added or redis.call('hexists', state, 'total') == 0 or setSince(latest, before) then
  return 0 -- the number was deleted, or set since
end
local all = done(record, grow(-more))
if type(all) == 'table' then
  note(record, number, what)
  return all
end
reap(term)
if added == 'made' and all == 0 and free() == 0 then
  redis.call('hdel', state, 'total', 'free')
end
if more < 0 then
  announce(ARGV[4], ARGV[5], -more)
end
wake(ARGV[3], ARGV[4], term)
return told(1)
