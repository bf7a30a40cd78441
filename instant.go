package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// instant is a time on the clock of one client, in nanoseconds since the client was made; zero is
// no time. A hold has several, so they are a third as large as a time.Time. They are compared
// within one client only: each may have a clock of its own.
type instant int64

func (t instant) Add(d time.Duration) instant { return t + instant(d) }
func (t instant) Sub(u instant) time.Duration { return time.Duration(t - u) }
func (t instant) Before(u instant) bool       { return t < u }
func (t instant) After(u instant) bool        { return t > u }
func (t instant) IsZero() bool                { return t == 0 }

// timeline is the clock of a client.
type timeline struct {
	clock seam.Clock
	start time.Time // of which no instant is told: it would be zero
}

func newTimeline(clock seam.Clock) timeline { return timeline{clock, clock.Now().Add(-1)} }

func (l *timeline) now() instant { return l.at(l.clock.Now()) }

// at is the instant of a time that the clock has shown.
func (l *timeline) at(t time.Time) instant { return instant(t.Sub(l.start)) }

// time is the time of an instant. It shows the time of day as of now, should that have been set
// since the client was made.
func (l *timeline) time(t instant) time.Time {
	now := l.clock.Now()
	return now.Add(t.Sub(l.at(now)))
}
