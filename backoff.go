package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// Backoff is how long a waiter of a [SpinLock] pauses between two polls, less a random part of up to
// half; at most the rest of the holder's lease.
type Backoff struct{ first, longest time.Duration }

// ExponentialBackoff pauses for first, then twice as long each time, up to longest. Both must be
// between [MinBackoff] and [MaxLease].
func ExponentialBackoff(first, longest time.Duration) Backoff { return Backoff{first, longest} }

// ConstantBackoff pauses for d each time, from [MinBackoff] to [MaxLease].
func ConstantBackoff(d time.Duration) Backoff { return Backoff{d, d} }

func (b Backoff) check() error {
	if b.first < MinBackoff || b.longest < b.first || b.longest > MaxLease {
		return invalid("WithBackoff(%v to %v): pauses must be between %v and %v, and the longest not shorter than the first", b.first, b.longest, MinBackoff, MaxLease)
	}
	return nil
}

// pause is how long to sleep after the look with a number, counted from 0.
func (b Backoff) pause(seed uint64, who int64, look int) time.Duration {
	d := b.first
	for range look {
		if d >= b.longest/2 {
			d = b.longest
			break
		}
		d *= 2
	}
	return d - seam.Jitter(seed, who, look, d/2)
}
