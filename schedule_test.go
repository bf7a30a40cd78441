package rlock_test

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// each returns the Next of a schedule that begins with offset, and then comes at each interval.
func each(interval, offset time.Duration) func(time.Time) time.Time {
	return func(after time.Time) time.Time {
		return after.Add(-offset).Truncate(interval).Add(interval + offset)
	}
}

func TestScheduledTimeIsTheTickThatACallIsFor(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	daily := func(after time.Time) time.Time {
		berlin := time.FixedZone("", 3600)
		y, m, d := after.In(berlin).Date()
		if t := time.Date(y, m, d, 3, 30, 0, 0, berlin); t.After(after) {
			return t
		}
		return time.Date(y, m, d+1, 3, 30, 0, 0, berlin)
	}
	leapDay := func(after time.Time) time.Time {
		for y := after.Year(); ; y++ {
			if t := time.Date(y, 2, 29, 0, 0, 0, 0, time.UTC); t.Day() == 29 && t.After(after) {
				return t
			}
		}
	}
	never := func(time.Time) time.Time { return time.Time{} }
	only := func(after time.Time) time.Time {
		if after.Before(noon) {
			return noon
		}
		return time.Time{}
	}
	for _, c := range []struct {
		what string
		now  time.Time
		next func(time.Time) time.Time
		want time.Time
	}{
		{"in time", noon, each(time.Minute, 0), noon},
		{"a little late", noon.Add(3 * time.Millisecond), each(time.Minute, 0), noon},
		{"late by more than half", noon.Add(45 * time.Second), each(time.Minute, 0), noon},
		{"late by almost all", noon.Add(58 * time.Second), each(time.Minute, 0), noon},
		{"a little early", noon.Add(-3 * time.Millisecond), each(time.Minute, 0), noon},
		{"too early", noon.Add(-2 * time.Second), each(time.Minute, 0), noon.Add(-time.Minute)},
		{"each second, late", noon.Add(800 * time.Millisecond), each(time.Second, 0), noon},
		{"each second, early", noon.Add(-80 * time.Millisecond), each(time.Second, 0), noon},
		{"half past", noon.Add(30*time.Minute + time.Millisecond), each(time.Hour, 30*time.Minute), noon.Add(30 * time.Minute)},
		{"half past, a little early", noon.Add(30*time.Minute - time.Millisecond), each(time.Hour, 30*time.Minute), noon.Add(30 * time.Minute)},
		{"daily, elsewhere", noon, daily, time.Date(2026, 11, 23, 2, 30, 0, 0, time.UTC)},
		{"once in four years", noon, leapDay, time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)},
		{"only once", noon.Add(time.Hour), only, noon},
		{"only once, before", noon.Add(-time.Hour), only, time.Time{}},
		{"never", noon, never, time.Time{}},
	} {
		if got := rlock.ScheduledTime(c.now, c.next); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	// The monotonic reading that time.Now has is in the way of nothing.
	now := time.Now()
	if got := rlock.ScheduledTime(now, func(after time.Time) time.Time { return after.Add(time.Hour) }); got != got.Round(0) {
		t.Error(got)
	}
}

// Why now.Round is not enough: each of these is called by two schedulers for the tick of 12:30, of which the
// second has a timer that is a little late, or early.
func TestRoundedTimeIsNoScheduledTime(t *testing.T) {
	t.Parallel()
	tick := time.Date(2026, 11, 23, 12, 30, 0, 0, time.UTC)
	for what, c := range map[string]struct {
		interval, offset time.Duration
		calls            [2]time.Time
		rounds           bool // to different ticks
	}{
		"on the hour's half":   {time.Hour, 30 * time.Minute, [2]time.Time{tick.Add(-time.Millisecond), tick.Add(time.Millisecond)}, true},
		"a busy machine":       {time.Minute, 0, [2]time.Time{tick.Add(time.Millisecond), tick.Add(31 * time.Second)}, true},
		"each second, late":    {time.Second, 0, [2]time.Time{tick, tick.Add(600 * time.Millisecond)}, true},
		"as it is mostly seen": {time.Minute, 0, [2]time.Time{tick.Add(-time.Millisecond), tick.Add(time.Second)}, false},
	} {
		var rounded, scheduled [2]time.Time
		for i, now := range c.calls {
			rounded[i], scheduled[i] = now.Round(c.interval), rlock.ScheduledTime(now, each(c.interval, c.offset))
		}
		if differ := !rounded[0].Equal(rounded[1]); differ != c.rounds {
			t.Errorf("%s: rounded to %v", what, rounded)
		}
		for _, at := range scheduled {
			if !at.Equal(tick) {
				t.Errorf("%s: scheduled at %v", what, scheduled)
			}
		}
	}
}

// A schedule is asked for few more ticks than are needed, however long ago the last one was.
func TestScheduleIsAskedForFewTicks(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{time.Millisecond, time.Second, time.Minute, 24 * time.Hour} {
		asked, next := 0, each(interval, 0)
		rlock.ScheduledTime(time.Now(), func(after time.Time) time.Time { asked++; return next(after) })
		if asked > 2100 { // those of one second
			t.Errorf("each %v: asked %d times", interval, asked)
		}
	}
}
