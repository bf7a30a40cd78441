-- linekeys: the keys of a fair lock, and the time. A script that finds its usual case with
-- these needs nothing of line.lua.
--
-- KEYS[1]  lock hash
-- KEYS[2]  queue: list of hold ids; the head is next
-- KEYS[3]  deadlines: zset, hold id -> epoch ms from which Redisson may remove
--          the waiter if it is the head. A waiter of Redisson adds its waiting time
--          to the deadline of the last in line, and subtracts it from all behind it
--          when it leaves. Ours together add one waiter lease, and subtract nothing.
-- KEYS[4]  alive: see life.lua. It does not have Redisson's waiters.
-- KEYS[5]  notes: see life.lua; and hold id -> how many of Redisson's waiters were in
--          line when the waiter came, if there were any
--
-- Defines  lock, queue, deadlines, alive, notes: these keys; clock, now: the time in µs and ms;
--          digits, nowText: the same as text; DAY
-- include time
local lock, queue, deadlines, alive, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local clock, digits = micros()
local now, nowText = math.floor(clock / 1000), digits:sub(1, -4)

local DAY = 24 * 60 * 60 * 1000
