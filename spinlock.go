package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// SpinLock is Lock without messages: a release is not announced, and who waits
// does not listen but looks again and again, after pauses that grow. It is the
// counterpart of Redisson's RSpinLock. It suits locks that are held for
// milliseconds and of which there are very many, where a message for each
// release would cost more than a few looks, and users who are not allowed to
// publish or subscribe.
//
// Of a client's waiters only the first in line looks; the others cost nothing,
// and hear at once of a release in the same client. So the cost is one look for
// each pause, lock and waiting process: with the default back-off 8 in the
// first quarter of a second and then about 10 a second. The price in time is that
// a free lock is noticed up to a pause late.
//
// Everything else is as with Lock: the same keys, leases, tokens and re-entry.
// The two exclude each other, but a waiter of Lock does not hear the release of
// a SpinLock and sleeps until the lease of its holder would be over, or
// WithLongestPoll.
type SpinLock struct{ *core }

var _ Locker = (*SpinLock)(nil)

// NewSpinLock returns the spin lock of a name. It sends nothing; what is wrong
// with the arguments is reported by the first call. The rules for names are
// those of NewLock.
func (c *Client) NewSpinLock(name string, opts ...SpinLockOption) *SpinLock {
	cfg := spinConfig{backoff: ExponentialBackoff(DefaultFirstBackoff, DefaultLongestBackoff)}
	err := applyEach(opts, func(o SpinLockOption) { o.spinLock(&cfg) })
	if err == nil {
		err = cfg.backoff.check()
	}
	l, names := newCore(c, hashFamily, name, cfg.lockConfig, err)
	l.asks = protocol.NewSpin(&l.c.site, names, func(who int64, look int) time.Duration {
		return cfg.backoff.pause(l.c.seed, who, look)
	})
	return &SpinLock{l}
}

type spinConfig struct {
	lockConfig
	backoff Backoff
}

type spinOption func(c *spinConfig)

func (o spinOption) spinLock(c *spinConfig) { o(c) }

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

// WithBackoff sets how a SpinLock waits. The default is
// ExponentialBackoff([DefaultFirstBackoff], [DefaultLongestBackoff]). Other types
// of locks refuse it.
func WithBackoff(b Backoff) SpinLockOption {
	return spinOption(func(c *spinConfig) { c.backoff = b })
}

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
