package coordination

import (
	"errors"
	"math/rand/v2"
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
		{"an interval", noon.Add(time.Minute), rlock.Every(time.Hour).Next, noon},
		{"an interval, early", noon.Add(-time.Millisecond), rlock.Every(4 * time.Second).Next, noon},
	} {
		if got, err := rlock.ScheduledTime(c.now, c.next); !got.Equal(c.want) || err != nil {
			t.Errorf("%s: %v, %v, want %v", c.what, got, err, c.want)
		}
	}
	// The monotonic reading that time.Now has is in the way of nothing.
	now := time.Now()
	if got, err := rlock.ScheduledTime(now, rlock.Every(time.Hour).Next); got != got.Round(0) || err != nil {
		t.Error(got, err)
	}
}

// A schedule that counts from when it is asked has no tick that two processes agree about.
func TestScheduledTimeRefusesASchedule(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	// As cron.ConstantDelaySchedule of robfig/cron, which is @every.
	every := func(d time.Duration) func(time.Time) time.Time {
		return func(after time.Time) time.Time { return after.Add(d - time.Duration(after.Nanosecond())) }
	}
	only := func(after time.Time) time.Time {
		if after.Before(noon) {
			return noon
		}
		return time.Time{}
	}
	draws := rand.New(rand.NewPCG(1, 1))
	for what, next := range map[string]func(time.Time) time.Time{
		"none":               nil,
		"never":              func(time.Time) time.Time { return time.Time{} },
		"only once, later":   only,
		"@every 4s":          every(4 * time.Second),
		"@every 1h":          every(time.Hour),
		"@every 25h":         every(25 * time.Hour),
		"a duration":         func(after time.Time) time.Time { return after.Add(time.Hour) },
		"at random":          func(after time.Time) time.Time { return after.Add(1 + time.Duration(draws.Int64N(int64(time.Hour)))) },
		"Every(0)":           rlock.Every(0).Next,
		"Every(-1s)":         rlock.Every(-time.Second).Next,
		"Every(1.5ms)":       rlock.Every(1500 * time.Microsecond).Next,
		"what does not move": func(after time.Time) time.Time { return after },
	} {
		for _, now := range []time.Time{noon.Add(-time.Hour), noon.Add(-time.Hour - 700*time.Millisecond), noon.Add(-2*time.Hour + 17*time.Millisecond)} {
			if got, err := rlock.ScheduledTime(now, next); !errors.Is(err, rlock.ErrInvalidArgument) || !got.IsZero() {
				t.Errorf("%s: %v, %v", what, got, err)
			}
		}
	}
	// @every 1s begins with each second, wherever it is asked.
	if got, err := rlock.ScheduledTime(noon.Add(300*time.Millisecond), every(time.Second)); !got.Equal(noon) || err != nil {
		t.Error(got, err)
	}
}

func TestEveryHasTheSameTimesForAll(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{time.Millisecond, time.Second, 4 * time.Second, 7 * time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour} {
		at := time.Date(2026, 11, 23, 11, 59, 58, 123456789, time.FixedZone("", 5*3600))
		for range 100 {
			next := rlock.Every(d).Next(at)
			if !next.After(at) || next.Sub(at) > d || !next.Equal(next.Truncate(d)) || next.Location() != at.Location() {
				t.Fatalf("%v after %v: %v", d, at, next)
			}
			at = next.Add(-1)
			if again := rlock.Every(d).Next(at); !again.Equal(next) {
				t.Fatalf("%v after %v: %v", d, at, again)
			}
			at = next.Add(d / 3)
		}
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
			var err error
			rounded[i] = now.Round(c.interval)
			if scheduled[i], err = rlock.ScheduledTime(now, each(c.interval, c.offset)); err != nil {
				t.Error(err)
			}
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
		if _, err := rlock.ScheduledTime(time.Now(), func(after time.Time) time.Time { asked++; return next(after) }); err != nil {
			t.Error(err)
		}
		if asked > 2100 { // those of one second
			t.Errorf("each %v: asked %d times", interval, asked)
		}
	}
}
