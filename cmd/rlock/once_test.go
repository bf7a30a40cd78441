package main

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// The tick for which cron starts a command in the nights in which the clocks of Berlin change: that of Debian starts what is
// due at 2:30 once, at 3:00 if there is no 2:30, and what is due in each hour in each of them.
func TestTickWhenTheClocksChange(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec    string
		started string // in UTC
		want    string
	}{
		{"30 2 * * *", "2026-03-29 01:00:01", "2026-03-29 01:00:00"}, // 3:00
		{"30 2 * * *", "2026-03-29 08:00:00", "2026-03-29 01:00:00"},
		{"30 2 * * *", "2026-03-29 00:59:50", "2026-03-28 01:30:00"},
		{"30 2 * * *", "2026-03-30 00:30:00", "2026-03-30 00:30:00"},
		{"30 2 * * *", "2026-10-25 00:30:01", "2026-10-25 00:30:00"}, // the first 2:30
		{"30 2 * * *", "2026-10-25 01:30:01", "2026-10-25 00:30:00"}, // the second
		{"0 * * * *", "2026-10-25 00:00:01", "2026-10-25 00:00:00"},
		{"0 * * * *", "2026-10-25 01:00:01", "2026-10-25 01:00:00"},
		{"*/5 * * * *", "2026-10-25 01:05:01", "2026-10-25 01:05:00"},
		{"0 * * * *", "2026-03-29 01:00:01", "2026-03-29 01:00:00"},
	} {
		next, err := crontab("CRON_TZ=Europe/Berlin " + c.spec)
		if err != nil {
			t.Fatal(err)
		}
		now, err := time.Parse(time.DateTime, c.started)
		if err != nil {
			t.Fatal(err)
		}
		for _, zone := range []*time.Location{time.UTC, berlin} {
			if tick, err := rlock.ScheduledTime(now.In(zone), next); err != nil || tick.UTC().Format(time.DateTime) != c.want {
				t.Errorf("%s, started at %s: %v, %v, want %s", c.spec, c.started, tick.UTC(), err, c.want)
			}
		}
	}
}
