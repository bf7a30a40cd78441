package rlockui

import (
	"errors"
	"testing"
	"time"
)

// A viewer who comes during the first poll after hours without viewers would be shown the locks of hours ago.
func TestOldReadingIsNotShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age   time.Duration
		polls bool
		given bool
	}{
		"of the poll before": {age: 5 * time.Second, polls: true, given: true},
		"young":              {age: time.Second, given: true},
		"of an hour ago":     {age: time.Hour, polls: true},
		"nobody polls":       {age: 5 * time.Second},
	} {
		b, now := newBook(1), time.Now()
		b.enter(&reading{began: now.Add(-c.age), ended: now.Add(-c.age)})
		if given := b.isFresh(now, DefaultInterval, c.polls); given != c.given {
			t.Errorf("%s: given %v", name, given)
		}
	}
	if newBook(1).isFresh(time.Now(), DefaultInterval, true) {
		t.Error("given before the first poll")
	}
}

func TestPauseAfterAPoll(t *testing.T) {
	t.Parallel()
	const interval = 2 * time.Second
	refused := errors.New("no answer from Redis within 10s")
	for name, c := range map[string]struct {
		usual, took time.Duration // of a poll before, and of the latest
		err         error
		pause       time.Duration
	}{
		"brief":                          {took: time.Millisecond, pause: interval - time.Millisecond},
		"long, as before":                {usual: 2 * time.Second, took: time.Second, pause: 9 * time.Second},
		"long, after brief ones":         {usual: time.Millisecond, took: 4 * time.Second, pause: 4 * time.Second},
		"long, the first":                {took: 4 * time.Second, pause: 4 * time.Second},
		"failed, after brief ones":       {usual: time.Millisecond, took: 10 * time.Second, err: refused, pause: 10 * time.Second},
		"failed, after long ones":        {usual: 5 * time.Second, took: 10 * time.Second, err: refused, pause: 45 * time.Second},
		"refused immediately, the first": {took: time.Millisecond, err: refused, pause: interval},
		"too long":                       {usual: time.Second, took: longestPoll, err: errTooLong, pause: 9 * longestPoll},
	} {
		b, began := newBook(1), time.Now()
		if c.usual != 0 {
			b.enter(&reading{began: began.Add(-time.Hour), ended: began.Add(-time.Hour + c.usual)})
		}
		ended := began.Add(c.took)
		b.enter(&reading{began: began, ended: ended, err: c.err})
		if pause := b.due(interval).Sub(ended); pause > c.pause || pause < c.pause-10*time.Millisecond {
			t.Errorf("%s: a pause of %v, not of %v", name, pause, c.pause)
		}
	}
}
