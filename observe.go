package rlock

import (
	"context"
	"time"
)

// Observer is told what a Client does, to count, measure or trace it. Its
// methods are called at any time and concurrently: they must be quick and must
// not call back into the Client.
//
// Lost, Renewed, Unpublished, Subscription (off), and Retry of renewals and of clean-ups in
// the background may come late: they are called from a goroutine of their own,
// one at a time and in order. One that blocks delays only later ones of these
// and Shutdown, no lease and no renewal; while a thousand of them wait, more are
// dropped and counted (Dropped), but never Lost. All others are called from the
// goroutine that does the work, which waits for them.
//
// A panic in one of them is caught, and the first one of each method is logged.
//
// Embed NopObserver to implement only some, and to stay compatible when
// methods are added.
type Observer interface {
	// AcquireStart is called before an acquire. The context that it returns is
	// used for the commands and handed to AcquireEnd: a place for a span.
	AcquireStart(ctx context.Context, lock string) context.Context
	// AcquireEnd is called with the result.
	AcquireEnd(ctx context.Context, e AcquireEvent)
	// Contended is called when an acquire finds the lock held and begins to wait.
	Contended(lock string)
	// Renewed is called when a lease was renewed by the watchdog.
	Renewed(lock, owner string)
	// Lost is called when a hold ends otherwise than by Unlock or Shutdown.
	Lost(e LossEvent)
	// Unlocked is called at the end of the first Unlock of each lease; Err says
	// how it went.
	Unlocked(e UnlockEvent)
	// Retry is called when an operation on Redis failed and is tried again.
	Retry(operation string, err error)
	// Subscription is called when the subscription of a channel is confirmed
	// (on), or ends or breaks (off).
	Subscription(channel string, on bool)
	// Unpublished is called once, when Redis first lets a lock be released but
	// does not let that be published. Waiters of other processes are not woken
	// then: they look when the holder's lease is over, and at the longest poll.
	Unpublished(err error)
	// Dropped is called when the observer was too slow, with the number of calls of
	// Renewed, Retry and Subscription, and of log lines, that were left out.
	Dropped(events int)
}

// AcquireEvent is the end of an acquire.
type AcquireEvent struct {
	Lock     string
	Owner    string // empty if not acquired
	Token    int64
	Wait     time.Duration // from the call to its return
	Attempts int           // looks at the lock
	Reentry  bool
	Err      error
}

// LossEvent is the loss of a hold.
type LossEvent struct {
	Lock  string
	Owner string
	Token int64
	Held  time.Duration
	Cause error // matches one of the causes, such as ErrTakenOver
}

// UnlockEvent is the end of an Unlock.
type UnlockEvent struct {
	Lock  string
	Owner string
	Token int64
	Held  time.Duration // since this lease was acquired
	Err   error
}

// NopObserver observes nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

func (NopObserver) AcquireStart(ctx context.Context, _ string) context.Context { return ctx }
func (NopObserver) AcquireEnd(context.Context, AcquireEvent)                   {}
func (NopObserver) Contended(string)                                           {}
func (NopObserver) Renewed(string, string)                                     {}
func (NopObserver) Lost(LossEvent)                                             {}
func (NopObserver) Unlocked(UnlockEvent)                                       {}
func (NopObserver) Retry(string, error)                                        {}
func (NopObserver) Subscription(string, bool)                                  {}
func (NopObserver) Unpublished(error)                                          {}
func (NopObserver) Dropped(int)                                                {}
