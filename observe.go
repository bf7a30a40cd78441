package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Observer is told what a Client does, to count, measure or trace it. Its methods may be
// called concurrently at any time; they must be quick and must not call back into the
// Client.
//
// Lost, Leadership, Renewed, Unpublished, Subscription (off), and Retry of renewals and background
// clean-ups may come late: one goroutine calls them, one at a time and in order. A
// method that blocks there delays only later events and Shutdown, no lease and no
// renewal; while a thousand wait, more are dropped and counted (Dropped), but never
// Lost or Leadership. The goroutine that does the work calls all others, and waits for them: while Contended
// takes its time, a release may make that very acquire the holder. A panic
// in a method is caught, and the first of each method is logged. A method that ends its
// goroutine, as t.FailNow does, ends the call that waits for it: what that has taken is given
// back, at the latest when its lease is over.
//
// Embed NopObserver to implement only some methods, and to stay compatible when methods
// are added.
type Observer interface {
	// AcquireStart is called before an acquire. The context that it returns is used for
	// the commands and handed to AcquireEnd: a place for a span.
	AcquireStart(ctx context.Context, lock string) context.Context
	AcquireEnd(ctx context.Context, e AcquireEvent)
	Contended(lock string)             // an acquire found the lock held and begins to wait
	Renewed(lock, holdID string)       // the watchdog has renewed a lease
	Lost(e LossEvent)                  // a hold has ended other than by Unlock or Shutdown
	Leadership(e LeadershipEvent)      // a Campaign of this client leads an Election, or does not any more
	Unlocked(e UnlockEvent)            // the first Unlock of a lease, or a Release of a Semaphore, has ended
	Retry(operation string, err error) // it has failed on Redis and is tried again
	// Subscription is called when a subscription is confirmed (on), or ends or breaks.
	Subscription(channel string, on bool)
	// Unpublished is called once, when Redis first permits a release but not its
	// message. Waiters of other processes are not woken then: they look when the
	// holder's lease is over, and at the longest poll.
	Unpublished(err error)
	// Dropped is called when the observer was too slow, with the number of dropped
	// calls of Renewed, Retry and Subscription, and log lines.
	Dropped(events int)
}

// AcquireEvent is the end of an acquire.
type AcquireEvent struct {
	Lock     string
	HoldID   string // empty if not acquired
	Token    int64
	Wait     time.Duration // from the call to its return
	Attempts int           // looks at the lock
	Reentry  bool
	Err      error
}

// LossEvent is the loss of a hold.
type LossEvent struct {
	Lock, HoldID string
	Token        int64
	Held         time.Duration
	Cause        error // matches one of the causes, such as ErrTakenOver
}

// LeadershipEvent is the beginning of a leadership, or its end: the lease is over, whether it was
// unlocked, was lost, or the client shuts down.
type LeadershipEvent struct {
	Election, HoldID string
	Token            int64
	Leads            bool  // it begins
	Cause            error // of the end: Lease.Err
}

// UnlockEvent is the end of an Unlock.
type UnlockEvent struct {
	Lock, HoldID string
	Token        int64
	Held         time.Duration // since this lease was acquired
	Err          error
}

// Callers is for hooks of go-redis, such as tracing: it returns the contexts of the calls whose requests
// share the pipeline of a ctx, which itself has the values of the first of them. So a span of the
// pipeline can be a child of the first and link to the others. Otherwise it returns nil: the ctx of a
// command by itself has the values of its caller, and that of background work, such as renewals, of
// nobody.
func Callers(ctx context.Context) []context.Context { return wire.Callers(ctx) }

// NopObserver observes nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

func (NopObserver) AcquireStart(ctx context.Context, _ string) context.Context { return ctx }
func (NopObserver) AcquireEnd(context.Context, AcquireEvent)                   {}
func (NopObserver) Contended(string)                                           {}
func (NopObserver) Renewed(string, string)                                     {}
func (NopObserver) Lost(LossEvent)                                             {}
func (NopObserver) Leadership(LeadershipEvent)                                 {}
func (NopObserver) Unlocked(UnlockEvent)                                       {}
func (NopObserver) Retry(string, error)                                        {}
func (NopObserver) Subscription(string, bool)                                  {}
func (NopObserver) Unpublished(error)                                          {}
func (NopObserver) Dropped(int)                                                {}
