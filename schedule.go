package rlock

import "time"

// A schedule is a function that returns its first time after a time, as the Next of a cron.Schedule does. This file
// finds the scheduled time that a call is for.

// earlyMost is how early a timer may be: since it was set, its clock may have been set back, or have run slower.
const earlyMost = time.Second

// farthest is how far back the last time of a schedule may be: February 29 may be eight years apart.
const farthest = 9 * 366 * 24 * time.Hour

// ScheduledTime returns the tick that a call at now belongs to, for schedulers that do not say so: the
// latest scheduled time until now, or the next if that is very near. All processes get the same one, unless
// a timer is late by the whole time between two ticks. next is as for [CronJob.Missed]; without such a
// time, and for an @every of robfig/cron (see [Every]), the error matches ErrInvalidArgument. See
// https://go-rlock.github.io/rlock/latest/cron/#the-scheduled-time
func ScheduledTime(now time.Time, next func(after time.Time) time.Time) (time.Time, error) {
	if next == nil {
		return time.Time{}, &Error{Err: invalid("ScheduledTime needs a schedule")}
	}
	next = InZone(next, now.Location())
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

// checkSchedule reports why a schedule that has returned these ticks, the latest last, is invalid: the latest tick has to
// come next after each earlier time, even a nanosecond before it.
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

// latestTicks returns the latest times of a schedule that are after one time and not after another. It computes
// the times of the last second, and then goes back twice as far each time. So it computes few more times
// than it returns, no matter how long ago after is.
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
			from = t.Truncate(time.Millisecond).Add(time.Millisecond - 1) // earlier times are the same tick
		}
		if all || len(ticks) == most {
			return ticks
		}
	}
}

// InZone returns a schedule that has each time of day once when the clocks of the zone change. next computes in
// the location of its argument, as one of robfig/cron without CRON_TZ= does. [ScheduledTime] and [CronJob.Missed]
// do this for the zone of now. See https://go-rlock.github.io/rlock/latest/cron/#when-the-clocks-change
func InZone(next func(after time.Time) time.Time, zone *time.Location) func(after time.Time) time.Time {
	if next == nil {
		return nil
	}
	if zone == nil {
		zone = time.UTC
	}
	z := zoned{next, zone}
	return func(after time.Time) time.Time { return z.next(after).In(after.Location()) }
}

// zoned is a schedule in a zone. In it, a time of day is a time of the schedule that the schedule does not have at other
// hours.
type zoned struct {
	schedule func(after time.Time) time.Time
	zone     *time.Location
}

// longestChange is the largest change of the clocks. A zone that changes by more skips or repeats a day: it has moved
// across the date line.
const longestChange = 3 * time.Hour

func (z zoned) next(after time.Time) time.Time {
	for {
		after = after.In(z.zone)
		t := z.schedule(after).In(z.zone)
		if t.IsZero() || !t.After(after) {
			return t
		}
		if end := z.endOfGap(after, t); !end.IsZero() {
			return end
		}
		change, by := changeBefore(t)
		switch {
		case by < 0 && t.Sub(change) < -by && !z.eachHour(t, t): // the clock of the zone showed that time before
			if first := t.Add(by); first.After(after) {
				return first
			}
		case by > 0 && t.Sub(change) < by && !z.schedule(t.Add(-1)).Equal(t):
			// The schedule has stepped over the gap.
		default:
			return t
		}
		after = t
	}
}

// endOfGap returns the end of the first gap between two times at which a time of day was skipped; zero if there is none.
func (z zoned) endOfGap(after, t time.Time) time.Time {
	for _, change := after.ZoneBounds(); !change.IsZero() && !change.After(t); _, change = change.ZoneBounds() {
		_, by := changeBefore(change)
		if by <= 0 {
			continue
		}
		// By clocks that did not change.
		before := change.Add(-1)
		skipped := z.schedule(unchanged(before, 0))
		if !skipped.Before(change) && skipped.Before(change.Add(by)) && z.has(skipped, before, 0) && !z.eachHour(skipped, before) {
			return change
		}
	}
	return time.Time{}
}

// changeBefore returns the last change of the clocks until t, and by how much; 0 if there was none.
func changeBefore(t time.Time) (change time.Time, by time.Duration) {
	change, _ = t.ZoneBounds()
	if change.IsZero() {
		return change, 0
	}
	_, offset := change.Zone()
	_, before := change.Add(-1).Zone()
	if by = time.Duration(offset-before) * time.Second; by > longestChange || by < -longestChange {
		return change, 0
	}
	return change, by
}

// unchanged returns t in a zone with a fixed offset: the offset of t, and some hours more.
func unchanged(t time.Time, hours int) time.Time {
	_, offset := t.Zone()
	return t.In(time.FixedZone("", offset+hours*3600))
}

// has reports whether t is a time of the schedule, by the clocks of another time and some hours more.
func (z zoned) has(t, clocks time.Time, hours int) bool {
	at := t.Add(-1).In(unchanged(clocks, hours).Location())
	return z.schedule(at).Equal(t)
}

// eachHour reports whether the schedule has the time t at any hour of its day, by the clocks of another time: it has the
// same times in each hour, or does not compute in the location of its argument.
func (z zoned) eachHour(t, clocks time.Time) bool {
	hour := t.In(unchanged(clocks, 0).Location()).Hour()
	for h := range 24 {
		if !z.has(t, clocks, h-hour) {
			return false
		}
	}
	return true
}
