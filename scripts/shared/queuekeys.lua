-- queuekeys: the keys of a FairReadWriteLock, PriorityLock or Election, and the time. A script
-- that finds its usual case with these needs nothing of queue.lua.
--
-- KEYS[1]  holders: hash. For the exclusive hold: exclusive -> hold id, count -> its
--          entries, token -> its fencing token; of an election also value -> what its
--          leader proclaims, and edition -> the number of the Proclaim that set it. For
--          each shared hold: hold id -> entries
-- KEYS[2]  ends: zset, 'exclusive' or hold id -> the server ms in which the hold ends. A
--          hold that is not in it, or has ended, does not exist
-- KEYS[3]  alone: zset, waiter for an exclusive hold -> rank; the lowest is first
-- KEYS[4]  together: zset, waiter for a shared hold -> rank
-- KEYS[5]  alive: zset, waiter -> the server ms until which it counts as alive; see
--          life.lua
-- KEYS[6]  notes: hash; see life.lua. KEYS[3..6] are absent where the queue is not needed
--
-- Defines  these keys; clock, now: the time in µs and ms; digits: the time in µs as text;
--          nowText: that in ms; LONGEST_AWAY; whole(n), outlasts(kept, term)
-- include time
local holders, ends = KEYS[1], KEYS[2]
local alone, together, alive, notes = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local clock, digits = micros()
local now, nowText = math.floor(clock / 1000), digits:sub(1, -4)

-- LONGEST_AWAY is how long, in ms, waiters may be alive while all of them are silent: longer than the outage after which
-- they give up by default (a watchdog lease, 30 s).
local LONGEST_AWAY = 60000

-- whole is a whole number as text. Redis would write it by '%.17g', which is slow.
local function whole(n)
  if n == clock then
    return digits
  end
  return string.format('%.0f', n)
end

-- outlasts reports whether a queue with this TTL outlasts the next polls of its waiters. It
-- gets half a waiter lease more, so that not each poll has to lengthen it.
local function outlasts(kept, term)
  return kept >= LONGEST_AWAY + term / 2
end
