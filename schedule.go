package rlock

import "time"

// What a schedule says, of which only its next time can be asked.

// earlyMost is how early a timer may be: its clock may have been set back, or run slower since it was
// set.
const earlyMost = time.Second

// farthest is how far back a schedule is looked at: February 29 may be eight years apart.
const farthest = 9 * 366 * 24 * time.Hour

// ScheduledTime is the scheduled time that a call at now is for, if a scheduler does not tell it: the
// latest that has come, or the next if that comes within a second, and within a tenth of the time
// between the two. next is as for [CronJob.Missed]. Two processes get the same one, wherever their
// clocks are, unless their timers come late by the whole time between two ticks. It is zero if there is
// none.
//
// now.Round is no way to get it: a timer that is late by half of the interval gets the tick after its
// own, and schedules need not begin with the hour.
func ScheduledTime(now time.Time, next func(after time.Time) time.Time) time.Time {
	var last time.Time
	if all := latestTicks(next, now.Add(-farthest), now, 1); len(all) > 0 {
		last = all[0]
	}
	coming := next(now)
	early := earlyMost
	if !last.IsZero() {
		early = min(early, coming.Sub(last)/10)
	}
	if coming.After(now) && coming.Sub(now) <= early {
		return coming.Round(0)
	}
	return last
}

// latestTicks are the latest times of a schedule that are after one time and not after another. It asks
// for those of the last second, and then goes back twice as far each time, so that it asks for few more
// than it returns, however long ago after is.
func latestTicks(next func(after time.Time) time.Time, after, until time.Time, most int) (ticks []time.Time) {
	for back := time.Second; ; back *= 2 {
		from := until.Add(-back)
		all := !from.After(after)
		if all {
			from = after
		}
		ticks = ticks[:0]
		for t := next(from); t.After(from) && !t.After(until); t = next(from) {
			if len(ticks) == most {
				ticks = append(ticks[:0], ticks[1:]...)
			}
			ticks = append(ticks, t.Round(0))
			from = t.Truncate(time.Millisecond).Add(time.Millisecond - 1) // what comes before that is the same tick
		}
		if all || len(ticks) == most {
			return ticks
		}
	}
}
