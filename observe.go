package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Observer is told what a Client does, to count, measure or trace it. An Observer may also implement
// [ContentionObserver], [RenewalObserver], [LeadershipObserver], [RetryObserver],
// [SubscriptionObserver], [PublishObserver] and [DropObserver]: New looks once which it does.
//
// Each acquire has one AcquireStart and one AcquireEnd; one that is refused for its arguments, or by
// a closed Client, has neither. A wait for a CountDownLatch or a Barrier, and DoubleBarrier.Leave, are acquires too.
// A hold begins with an AcquireEnd whose Entry is 1. It ends with one event: Lost, or the Unlocked
// that says Ends; but not if nobody unlocks it after a Shutdown that ran out of time. The ctx of each event about a hold is that of the
// acquire with which it began, as AcquireStart has returned it: a place for a span. It may have
// ended. Nothing is told of a hold before its AcquireEnd has returned. An acquire that finds the result of a [Once] begins no
// hold, and has no error. Of a MultiLock the members are told.
//
// The methods may be called concurrently at any time. They must be quick and must not call back into
// the Client. Lost, Renewed, Leadership, Unpublished, Subscription (off), and Retry of background
// work may come late: one goroutine calls them, one at a time and in order. A method that
// blocks there delays only later events and Shutdown; while a thousand
// wait, more are dropped and counted, but never Lost or Leadership. The goroutine that does the work
// calls all others, and waits for them: while Contended takes its time, a release may make that very acquire the
// holder. A panic in a method is caught, and the first of each method is logged. A method that ends
// its goroutine, as t.FailNow does, ends the call that waits for it: what that has taken is given
// back, at the latest when its lease is over.
type Observer interface {
	// AcquireStart is called before an acquire. The context that it returns, or one made from it, is
	// used for the commands and handed to the other methods.
	AcquireStart(ctx context.Context, e StartEvent) context.Context
	AcquireEnd(ctx context.Context, e AcquireEvent)
	// Lost: a hold has ended other than by Unlock or Shutdown.
	Lost(ctx context.Context, e LossEvent)
	// Unlocked: the first Unlock of a lease, or a Release of a Semaphore, has ended.
	Unlocked(ctx context.Context, e UnlockEvent)
}

// ContentionObserver is told, once for each, of acquires that find the lock held and begin to wait.
type ContentionObserver interface {
	Contended(ctx context.Context, e ContentionEvent)
}

// RenewalObserver is told of each renewal by the watchdog, also of those that fail and are tried again.
type RenewalObserver interface {
	Renewed(ctx context.Context, e RenewalEvent)
}

// LeadershipObserver is told when a Campaign of this Client leads an Election, and when it does no more.
type LeadershipObserver interface {
	Leadership(ctx context.Context, e LeadershipEvent)
}

// RetryObserver is told when a request has failed on Redis and is tried again. ctx is that of the call
// whose request it is, if one is known. Renewals are told to a RenewalObserver instead.
type RetryObserver interface {
	Retry(ctx context.Context, e RetryEvent)
}

// SubscriptionObserver is told when a subscription is confirmed, or ends or breaks.
type SubscriptionObserver interface {
	Subscription(e SubscriptionEvent)
}

// PublishObserver is told once, when Redis first permits a release but not its message. Waiters of
// other processes are not woken then: they look when the holder's lease is over, and at the longest
// poll.
type PublishObserver interface {
	Unpublished(err error)
}

// DropObserver is told how many events (Renewed, Retry, Subscription) and log lines were dropped, as
// the Observer or the Logger was too slow.
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
	Err  error         // nil: it was confirmed
}

// LossEvent is the loss of a hold.
type LossEvent struct {
	Event
	Held  time.Duration
	Cause error // matches one of the causes, such as ErrTakenOver
}

// LeadershipEvent is the beginning of a leadership, or its end: the lease is over, whether it was
// unlocked, was lost, or the client shuts down.
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

// Callers is for hooks of go-redis, such as tracing: it returns the contexts of the calls whose requests
// share the pipeline of a ctx, which itself has the values of the first of them. So a span of the
// pipeline can be a child of the first and link to the others. Otherwise it returns nil: the ctx of a
// command by itself has the values of its caller, and that of background work, such as renewals, of
// nobody.
func Callers(ctx context.Context) []context.Context { return wire.Callers(ctx) }
