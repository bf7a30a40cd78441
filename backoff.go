package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

const (
	// DefaultFirstBackoff and DefaultLongestBackoff are the pauses of a SpinLock:
	// 1 ms, then twice as long each time, up to 128 ms. They are Redisson's: the
	// first is about how long a short critical section takes, and with the
	// longest a waiter costs Redis about ten cheap commands a second.
	DefaultFirstBackoff   = time.Millisecond
	DefaultLongestBackoff = 128 * time.Millisecond

	// DefaultConstantBackoff is what Redisson's constant back-off pauses: half
	// the longest of the exponential one.
	DefaultConstantBackoff = 64 * time.Millisecond

	// MinBackoff is the shortest pause between two looks. A round trip takes
	// about as long: less would make a waiter look without a pause.
	MinBackoff = 100 * time.Microsecond
)

// Backoff is how long a waiter of a SpinLock pauses between two looks. A pause
// begins with a failed look; a random part of it, up to half, is left out, so that
// waiters of several processes do not keep step. It is never longer than the rest
// of the holder's lease, or WithLongestPoll. Each waiter begins with the first
// pause when it gets to the head of its client's line.
type Backoff struct{ first, longest time.Duration }

// ExponentialBackoff pauses for first, then twice as long each time, up to
// longest. The pauses must be between [MinBackoff] and [MaxLease], and longest not
// shorter than first; the first call on the lock reports what is wrong.
func ExponentialBackoff(first, longest time.Duration) Backoff { return Backoff{first, longest} }

// ConstantBackoff pauses for d each time: between [MinBackoff] and [MaxLease].
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
