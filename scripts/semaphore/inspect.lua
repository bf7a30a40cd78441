-- semaphore/inspect: one consistent view of a Semaphore.
--
-- KEYS[1]  free permits, a number
-- KEYS[2]  how many permits there are
-- KEYS[3]  held permits of a PermitSemaphore of this name
-- Reply    {set, free, all}  1 if a number of permits is set; how many are free; how many there are,
--          free or not. Without all if that is not known
-- Caller   State of a Semaphore
-- Twice    Reads only.

-- include total
local free, foreign, all = numbers(KEYS[1], KEYS[2], KEYS[3])
if foreign then
  return foreign
elseif not free then
  return {0, 0}
end
if counts(all, free) then
  return {1, free, all}
end
return {1, free}
