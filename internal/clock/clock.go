// Package clock has the time of one client, and the sleep of its goroutines. Tests replace both through package seam.
package clock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// Instant is a time on the clock of one client, in nanoseconds since the client was made; zero means no
// time. A hold has several, which is why an Instant is a third as large as a time.Time. Instants of
// different clients cannot be compared.
type Instant int64

func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }
func (t Instant) Before(u Instant) bool       { return t < u }
func (t Instant) After(u Instant) bool        { return t > u }
func (t Instant) IsZero() bool                { return t == 0 }

// Timeline is the clock of a client.
type Timeline struct {
	clock seam.Clock
	start time.Time // before any Instant, so that none is zero
}

// NewTimeline returns the timeline of a client that begins now.
func NewTimeline(clock seam.Clock) Timeline { return Timeline{clock, clock.Now().Add(-1)} }

// Now returns the current instant.
func (l *Timeline) Now() Instant { return l.At(l.clock.Now()) }

// At returns the instant of a time that the clock has shown.
func (l *Timeline) At(t time.Time) Instant { return Instant(t.Sub(l.start)) }

// Time returns the time of an instant, by the current time of day, even if that was set since the
// client was made.
func (l *Timeline) Time(t Instant) time.Time {
	now := l.clock.Now()
	return now.Add(t.Sub(l.At(now)))
}
