package rlock

import "time"

// What a schedule says, of which only its next time can be asked.

// earlyMost is how early a timer may be: its clock may have been set back, or run slower since it was
// set.
const earlyMost = time.Second

// farthest is how far back a schedule is looked at: February 29 may be eight years apart.
const farthest = 9 * 366 * 24 * time.Hour

// ScheduledTime is the scheduled time that a call at now is for, if a scheduler does not tell it: the
// latest that has come, or the next if that is very near. All processes get the same one, unless their
// timers come late by the whole time between two ticks. next is as for [CronJob.Missed]; without such a
// time, and for an @every of robfig/cron (see [Every]), the error matches ErrInvalidArgument. See
// https://go-rlock.github.io/rlock/latest/cron/#the-scheduled-time
func ScheduledTime(now time.Time, next func(after time.Time) time.Time) (time.Time, error) {
	if next == nil {
		return time.Time{}, &Error{Err: invalid("ScheduledTime needs a schedule")}
	}
	var tick time.Time
	if all := latestTicks(next, now.Add(-farthest), now, 1); len(all) > 0 {
		tick = all[0]
	}
	coming, early := next(now), earlyMost
	if !tick.IsZero() {
		early = min(early, coming.Sub(tick)/10)
	}
	if coming.After(now) && coming.Sub(now) <= early {
		tick = coming.Round(0)
	}
	if tick.IsZero() {
		return tick, &Error{Err: invalid("the schedule has had no time until %v", now)}
	}
	if err := checkSchedule(next, []time.Time{tick}); err != nil {
		return time.Time{}, &Error{Err: err}
	}
	return tick, nil
}

// checkSchedule reports why a schedule that has returned these ticks, the latest last, is none: the
// latest has to be the same from wherever it is asked, from the last ns before it as well.
func checkSchedule(next func(after time.Time) time.Time, ticks []time.Time) error {
	if n := len(ticks); n == 0 {
		if next(time.Unix(0, 0)).IsZero() {
			return invalid("the schedule has no times")
		}
	} else if latest := ticks[n-1]; !next(latest.Add(-1)).Equal(latest) {
		return invalid("the schedule counts from when it is asked, so each process has ticks of its own: use rlock.Every, or a cron expression")
	}
	return nil
}

// Interval is a cron.Schedule with the same ticks in each process: see [Every].
type Interval struct{ every time.Duration }

// Every returns the schedule of all whole multiples of d in UTC, as time.Time.Truncate counts: an hour
// begins with each hour, a week on Monday. It is the same in each process, unlike the @every of
// robfig/cron. Unless d is a number of whole milliseconds, all that take a schedule refuse it.
func Every(d time.Duration) Interval { return Interval{d} }

// Next returns the first of the times after another; zero if there is none.
func (i Interval) Next(after time.Time) time.Time {
	if i.every < time.Millisecond || i.every%time.Millisecond != 0 {
		return time.Time{}
	}
	return after.Truncate(i.every).Add(i.every)
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
