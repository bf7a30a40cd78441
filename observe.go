package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Observer gets the events of a Client. It may also implement the other interfaces here whose names
// end with Observer. Methods may be called concurrently. They must return, quickly, and must not call the
// Client. A panic in a method is caught; a method that ends its goroutine, as t.FailNow does, breaks the call that
// it reports. If a method blocks, events of background work are dropped and counted, except Lost and Leadership.
// All events: https://go-rlock.github.io/rlock/latest/observer/
type Observer interface {
	// AcquireStart is called before an acquire. It returns its context, or one made from it, for all that follows.
	AcquireStart(ctx context.Context, e StartEvent) context.Context
	AcquireEnd(ctx context.Context, e AcquireEvent) // the acquire has ended
	Lost(ctx context.Context, e LossEvent)          // a hold has ended other than by Unlock or Shutdown
	Unlocked(ctx context.Context, e UnlockEvent)    // the first Unlock of a lease, or a Semaphore's Release, has ended
}

// ContentionObserver is notified once for each acquire that begins to wait.
type ContentionObserver interface {
	Contended(ctx context.Context, e ContentionEvent) // an acquire begins to wait
}

// RenewalObserver is notified of all renewals by the watchdog, failed or not.
type RenewalObserver interface {
	Renewed(ctx context.Context, e RenewalEvent) // a renewal has ended
}

// LeadershipObserver is notified when this Client begins and ends to lead.
type LeadershipObserver interface {
	Leadership(ctx context.Context, e LeadershipEvent) // a leadership begins or has ended
}

// RetryObserver is notified when a request, but no renewal, is tried again.
type RetryObserver interface {
	Retry(ctx context.Context, e RetryEvent) // ctx is the context of the call, if one is known
}

// SubscriptionObserver is notified when a subscription is confirmed or ends.
type SubscriptionObserver interface {
	Subscription(e SubscriptionEvent) // a subscription begins or has ended
}

// PublishObserver is notified once: when Redis first refuses a publication.
type PublishObserver interface {
	Unpublished(err error) // err is the reply of Redis
}

// DropObserver is notified of dropped events and log lines.
type DropObserver interface {
	Dropped(events int) // number of events and lines
}

// Event has the fields that all events share. A field is zero if it is not known, or does not apply.
type Event struct {
	Lock    string // the name, with the prefix
	Type    string // as "Lock" or "FairReadWriteLock": the one of the acquire
	Side    string // of a read-write lock: "read" or "write"
	HoldID  string // Lease.HoldID; a hold that is handed over has the id of the one before
	Token   int64  // Lease.Token
	Entry   int    // which lease of its hold: 1 is the first, 2 the first re-entry; 0 for none, or for all of them
	Permits int    // number of permits of a semaphore that the call is about
}

// StartEvent is the beginning of an acquire.
type StartEvent struct{ Event }

// AcquireEvent is the end of an acquire.
type AcquireEvent struct {
	Event
	Wait       time.Duration // time from the call to its return
	HolderID   string        // the latest known hold that kept the acquire out; empty without one
	Attempts   int           // requests for the lock
	Contended  bool          // the acquire has waited
	Reentry    bool          // the acquire has entered a hold again, or the re-entry was refused
	HandedOver bool          // a holder of this Client has handed its hold over: see WithHandOver
	Err        error
}

// ContentionEvent is the beginning of a wait.
type ContentionEvent struct{ Event }

// RenewalEvent is the end of a renewal.
type RenewalEvent struct {
	Event
	Left time.Duration // rest of the previous lease when the reply came: the margin
	Took time.Duration // from the request to the reply
	Err  error         // nil if confirmed; otherwise the lease of a RedLock may be longer nevertheless
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
	Leads bool  // the leadership begins
	Cause error // why the lease ended: Lease.Err
}

// UnlockEvent is the end of an Unlock.
type UnlockEvent struct {
	Event
	Ends       bool          // the hold has ended by this Unlock; otherwise it has other open leases, or was lost
	HandedOver bool          // the hold was handed over to the next waiter of this Client
	Held       time.Duration // since this lease was acquired; if it Ends, since the hold began
	Err        error
}

// RetryEvent is a failure of a request that is tried again.
type RetryEvent struct {
	Event
	Operation string
	Locks     int // number of locks of the request; if several, Event names none; 0 if unknown
	Err       error
}

// SubscriptionEvent is the confirmation of a subscription (On), or its end.
type SubscriptionEvent struct {
	Channel string
	On      bool
}

// Callers is for hooks of go-redis, such as tracing: from the context of a pipeline it returns the contexts
// of all calls whose requests are in it; from any other context, nil.
func Callers(ctx context.Context) []context.Context { return wire.Callers(ctx) }
