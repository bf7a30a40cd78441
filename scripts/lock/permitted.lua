-- lock/permitted: which commands the user may not send. Nothing is run.
--
-- KEYS[1]  absent: the script names keys, and uses none
-- ARGV     for each command: the number of its words, and the words
-- Reply    the numbers of the refused commands, from 1; negative if the server does not have the
--          command; nil if the server cannot check (before Redis 7.0)
-- Caller   Check
-- Twice    Changes nothing.

if not redis.acl_check_cmd then
  return false
end
local refused, number, at = {}, 0, 1
while at <= #ARGV do
  local n = tonumber(ARGV[at])
  number = number + 1
  local known, may = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, at + n))
  if not known then
    table.insert(refused, -number)
  elseif not may then
    table.insert(refused, number)
  end
  at = at + n + 1
end
return refused
