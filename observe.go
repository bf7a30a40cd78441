package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Observer is told what a Client does, to count, measure or trace it. It may also implement
// [ContentionObserver], [RenewalObserver], [LeadershipObserver], [RetryObserver],
// [SubscriptionObserver], [PublishObserver] and [DropObserver].
//
// Each acquire has one AcquireStart and one AcquireEnd. A hold begins with an AcquireEnd whose Entry is
// 1, and ends with Lost or an Unlocked that says Ends, in the context of that acquire; only a Shutdown
// that runs out of time leaves it without an end. Of a MultiLock the members are told.
//
// Methods may be called concurrently. They must be quick and must not call the Client. Events of
// background work may come late, but in order; if a method blocks, they are dropped and counted, except
// Lost and Leadership. A panic in a method is caught. Details: docs/observing.md.
type Observer interface {
	// AcquireStart is called before an acquire. It returns its context, or one made from it, which the
	// commands and the other methods get.
	AcquireStart(ctx context.Context, e StartEvent) context.Context
	AcquireEnd(ctx context.Context, e AcquireEvent)
	Lost(ctx context.Context, e LossEvent)       // a hold has ended other than by Unlock or Shutdown
	Unlocked(ctx context.Context, e UnlockEvent) // the first Unlock of a lease, or a Semaphore's Release, has ended
}

// ContentionObserver is told, once for each, of acquires that begin to wait.
type ContentionObserver interface {
	Contended(ctx context.Context, e ContentionEvent)
}

// RenewalObserver is told of each renewal by the watchdog, also if it fails.
type RenewalObserver interface {
	Renewed(ctx context.Context, e RenewalEvent)
}

// LeadershipObserver is told when this Client begins and ends to lead.
type LeadershipObserver interface {
	Leadership(ctx context.Context, e LeadershipEvent)
}

// RetryObserver is told when a request other than a renewal has failed and is tried again. ctx is that
// of its call, if one is known.
type RetryObserver interface {
	Retry(ctx context.Context, e RetryEvent)
}

// SubscriptionObserver is told when a subscription is confirmed or ends.
type SubscriptionObserver interface {
	Subscription(e SubscriptionEvent)
}

// PublishObserver is told once, when Redis first permits a release but not its message. Waiters of
// other processes then have to poll.
type PublishObserver interface {
	Unpublished(err error)
}

// DropObserver is told how many events and log lines were dropped.
type DropObserver interface {
	Dropped(events int)
}

// Event is what events have in common, as far as it is known and makes sense.
type Event struct {
	Lock    string // the name, with the prefix
	Type    string // as "Lock" or "FairReadWriteLock": the one of the acquire
	Side    string // of a read-write lock: "read" or "write"
	HoldID  string // Lease.HoldID; a hold that is handed over has the id of the one before
	Token   int64  // Lease.Token
	Entry   int    // which lease of its hold: 1 is the first, 2 the first re-entry; 0: none, or all of them
	Permits int    // of a semaphore that the call is about
}

// StartEvent is the beginning of an acquire.
type StartEvent struct{ Event }

// AcquireEvent is the end of an acquire.
type AcquireEvent struct {
	Event
	Wait       time.Duration // from the call to its return
	HolderID   string        // a hold that kept it out, the last that was seen; empty: none, or not known
	Attempts   int           // looks at the lock
	Contended  bool          // it has waited
	Reentry    bool          // it has entered a hold again, or was refused that
	HandedOver bool          // a holder of this Client has handed its hold over: see WithHandOver
	Err        error
}

// ContentionEvent is the beginning of a wait.
type ContentionEvent struct{ Event }

// RenewalEvent is the end of a renewal.
type RenewalEvent struct {
	Event
	Left time.Duration // of the lease before this renewal counted: the margin that there was
	Took time.Duration // since it was sent
	Err  error         // nil: it was confirmed; otherwise a RedLock's lease may be longer all the same (docs/redlock.md)
}

// LossEvent is the loss of a hold.
type LossEvent struct {
	Event
	Held  time.Duration
	Cause error // matches one of the causes, such as ErrTakenOver
}

// LeadershipEvent is the beginning of a leadership, or the end of its lease.
type LeadershipEvent struct {
	Event
	Leads bool  // it begins
	Cause error // of the end: Lease.Err
}

// UnlockEvent is the end of an Unlock.
type UnlockEvent struct {
	Event
	Ends       bool          // the hold has ended by this; otherwise other leases of it are open, or it was lost
	HandedOver bool          // it ends, and the next waiter of this Client has it
	Held       time.Duration // since this lease was acquired; if it Ends, since the hold began
	Err        error
}

// RetryEvent is a failure of a request that is tried again.
type RetryEvent struct {
	Event
	Operation string
	Locks     int // how many it is about; if several, Event names none; 0: not known
	Err       error
}

// SubscriptionEvent is the confirmation of a subscription (On), or its end.
type SubscriptionEvent struct {
	Channel string
	On      bool
}

// Callers is for hooks of go-redis, such as tracing: it returns the contexts of the calls whose
// requests share the pipeline of ctx, which itself has the values of the first. For any other ctx it
// returns nil.
func Callers(ctx context.Context) []context.Context { return wire.Callers(ctx) }
