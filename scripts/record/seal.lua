-- record/seal: stop the late copies of an operation that was answered or given up.
--
-- KEYS[1]  record of the page
-- ARGV[1]  number of the operation
-- Reply    1
-- Caller   an operation with a copy that may be under way
-- Twice    A second run finds the record of the first.

-- include record
local record, number = KEYS[1], ARGV[1]
local what = recorded(record, number)
if what ~= 'late' then
  note(record, number, what or 'gone')
end
return 1
