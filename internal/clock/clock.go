// Package clock has the time of one client, and how its goroutines sleep in it. It knows no locks.
package clock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// Instant is a time on the clock of one client, in nanoseconds since the client was made; zero is
// no time. A hold has several, so they are a third as large as a time.Time. They are compared
// within one client only: each may have a clock of its own.
type Instant int64

func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }
func (t Instant) Before(u Instant) bool       { return t < u }
func (t Instant) After(u Instant) bool        { return t > u }
func (t Instant) IsZero() bool                { return t == 0 }

// Timeline is the clock of a client.
type Timeline struct {
	clock seam.Clock
	start time.Time // of which no instant is told: it would be zero
}

// NewTimeline is the time of a client that begins now.
func NewTimeline(clock seam.Clock) Timeline { return Timeline{clock, clock.Now().Add(-1)} }

// Now is the instant that it is.
func (l *Timeline) Now() Instant { return l.At(l.clock.Now()) }

// At is the instant of a time that the clock has shown.
func (l *Timeline) At(t time.Time) Instant { return Instant(t.Sub(l.start)) }

// Time is the time of an instant. It shows the time of day as of now, should that have been set
// since the client was made.
func (l *Timeline) Time(t Instant) time.Time {
	now := l.clock.Now()
	return now.Add(t.Sub(l.At(now)))
}
