-- record: makes an operation take effect once, although its request may run twice or late. A client has pages. One
-- operation at a time uses a page, and its number is higher than the numbers of earlier operations of the page. The record
-- of a page is a string about its latest operation: the number, and the effect, as a word or a number.
--
-- Each script reads the record first, by GETEX. That changes nothing, but counts as a write.
-- So a demoted master, whose data may be old, refuses the script with READONLY; and at
-- its memory limit Redis lets the rest pass, as it refuses SET and INCRBY only as the first
-- write of a script.
--
-- Defines  recorded(record, number), note(record, number, what), done(record, reply)

-- KEEP is how long a record is known, ms: protocol.RecordTTL.
local KEEP = 600 * 1000

-- recorded returns the effect of an operation that has run; 'gone' if it was given up; 'late' if this is a late copy, since
-- a newer operation has used the page; otherwise nil.
local function recorded(record, number)
  local text = redis.call('getex', record)
  if text then
    local latest, what = string.match(text, '^(%d+) (.+)$')
    if latest == number then
      return what
    elseif latest and tonumber(latest) > tonumber(number) then
      return 'late'
    end
  end
end

-- note records what an operation has done.
local function note(record, number, what)
  redis.call('set', record, number .. ' ' .. what, 'px', KEEP)
end

-- done returns the reply of the command whose effect was recorded. If Redis has refused the command, done removes the
-- record.
local function done(record, reply)
  if type(reply) == 'table' and reply.err then
    redis.call('del', record)
  end
  return reply
end
