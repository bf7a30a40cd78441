package rlock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/go-rlock/rlock"
)

// wallClock returns a schedule of the minutes whose wall clock, in the location of the time that it is given, shows one of
// these minutes and hours: "*" or numbers, as in a crontab.
func wallClock(minutes, hours string) (next func(after time.Time) time.Time) {
	set := func(field string, n int) []bool {
		in := make([]bool, n)
		for i := range in {
			in[i] = field == "*" || slices.Contains(strings.Split(field, ","), fmt.Sprint(i))
		}
		return in
	}
	minute, hour := set(minutes, 60), set(hours, 24)
	return func(after time.Time) time.Time {
		t := after.Truncate(time.Minute).Add(time.Minute)
		for !hour[t.Hour()] || !minute[t.Minute()] {
			t = t.Add(time.Minute)
		}
		return t
	}
}

// What a scheduler that calls each minute, a second late, runs in the nights in which clocks change.
func TestTicksWhenTheClocksChange(t *testing.T) {
	t.Parallel()
	hourly := func(first string, n int) (all []string) {
		at, err := time.Parse("15:04 -07", first)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			all = append(all, at.Add(time.Duration(i)*time.Hour).UTC().Format("15:04"))
		}
		return all
	}
	for _, c := range []struct {
		zone, day      string
		minutes, hours string
		want           []string // in UTC, of the ticks from 0:00 to 6:00 of that day
	}{
		// 2:00 becomes 3:00, at 1:00 in UTC.
		{"Europe/Berlin", "2026-03-29", "30", "2", []string{"01:00"}},
		{"Europe/Berlin", "2026-03-29", "0", "2", []string{"01:00"}},
		{"Europe/Berlin", "2026-03-29", "10,50", "2", []string{"01:00"}},
		{"Europe/Berlin", "2026-03-29", "0", "3", []string{"01:00"}},
		{"Europe/Berlin", "2026-03-29", "30", "2,3", []string{"01:00", "01:30"}},
		{"Europe/Berlin", "2026-03-29", "30", "1", []string{"00:30"}},
		{"Europe/Berlin", "2026-03-29", "30", "*", hourly("00:30 +01", 5)},
		{"Europe/Berlin", "2026-03-29", "0", "*", hourly("00:00 +01", 5)},
		// 3:00 becomes 2:00, at 1:00 in UTC.
		{"Europe/Berlin", "2026-10-25", "30", "2", []string{"00:30"}},
		{"Europe/Berlin", "2026-10-25", "0", "2", []string{"00:00"}},
		{"Europe/Berlin", "2026-10-25", "0", "3", []string{"02:00"}},
		{"Europe/Berlin", "2026-10-25", "30", "2,3", []string{"00:30", "02:30"}},
		{"Europe/Berlin", "2026-10-25", "10,50", "2", []string{"00:10", "00:50"}},
		{"Europe/Berlin", "2026-10-25", "30", "*", hourly("00:30 +02", 7)},
		{"America/New_York", "2026-11-01", "30", "1", []string{"05:30"}},
		{"America/New_York", "2026-03-08", "15", "2", []string{"07:00"}},
		// Half an hour: 2:00 becomes 1:30, and 2:30.
		{"Australia/Lord_Howe", "2026-04-05", "30", "1", []string{"14:30"}},
		{"Australia/Lord_Howe", "2026-04-05", "45", "1", []string{"14:45"}},
		{"Australia/Lord_Howe", "2026-10-04", "30", "1", []string{"15:00"}},
		{"Australia/Lord_Howe", "2026-10-04", "15", "2", []string{"15:30"}},
		// No change.
		{"Europe/Berlin", "2026-03-30", "30", "2", []string{"00:30"}},
		{"UTC", "2026-03-29", "30", "2", []string{"02:30"}},
	} {
		t.Run(fmt.Sprint(c.zone, c.day, " ", c.minutes, " ", c.hours), func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(c.zone)
			if err != nil {
				t.Fatal(err)
			}
			from, err := time.ParseInLocation("2006-01-02", c.day, zone)
			if err != nil {
				t.Fatal(err)
			}
			until := time.Date(from.Year(), from.Month(), from.Day(), 6, 0, 0, 0, zone)
			next := wallClock(c.minutes, c.hours)
			var ticks, utc []string
			for now := from.Add(time.Second); now.Before(until); now = now.Add(5 * time.Minute) {
				tick, err := rlock.ScheduledTime(now, next)
				if err != nil {
					t.Fatal(now, err)
				}
				if now.Sub(tick) > 25*time.Hour+2*time.Second {
					t.Fatalf("at %v it is the tick of %v", now, tick)
				}
				if at := tick.UTC().Format("15:04"); !tick.Before(from) && !slices.Contains(ticks, at) {
					ticks = append(ticks, at)
				}
				// A host in another zone, which is given the zone of the schedule.
				if other, err := rlock.ScheduledTime(now.UTC(), rlock.InZone(next, zone)); err != nil || !other.Equal(tick) {
					t.Fatalf("%v, %v elsewhere, %v here", other, err, tick)
				}
			}
			in := rlock.InZone(next, zone)
			for at := in(from.Add(-1)); at.Before(until); at = in(at) {
				utc = append(utc, at.UTC().Format("15:04"))
			}
			if !slices.Equal(ticks, c.want) || !slices.Equal(utc, c.want) {
				t.Errorf("it runs at %v, by Next at %v, want %v", ticks, utc, c.want)
			}
		})
	}
}

// The times of an interval are the same in every zone, so no clock that changes moves them.
func TestIntervalWhenTheClocksChange(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, every := range []time.Duration{time.Minute, 30 * time.Minute, time.Hour, 24 * time.Hour} {
		for _, day := range []time.Time{time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), time.Date(2026, 10, 25, 0, 0, 0, 0, berlin)} {
			for now := day; now.Sub(day) < 6*time.Hour; now = now.Add(7 * time.Minute) {
				if tick, err := rlock.ScheduledTime(now, rlock.Every(every).Next); err != nil || !tick.Equal(now.Truncate(every)) {
					t.Errorf("%v at %v: %v, %v", every, now, tick, err)
				}
			}
		}
	}
}

// A schedule that counts from when it is asked is refused in these nights too.
func TestScheduleThatCountsIsRefusedWhenTheClocksChange(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	counts := func(after time.Time) time.Time { return after.Truncate(time.Second).Add(time.Hour) }
	for _, day := range []time.Time{time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), time.Date(2026, 10, 25, 0, 0, 0, 0, berlin)} {
		for now := day.Add(time.Second / 2); now.Sub(day) < 6*time.Hour; now = now.Add(13 * time.Minute) {
			if tick, err := rlock.ScheduledTime(now, counts); !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Errorf("at %v: %v, %v", now, tick, err)
			}
		}
	}
}
