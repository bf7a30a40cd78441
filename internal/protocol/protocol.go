// Package protocol has what each type of lock asks of Redis, and reads each reply once, into
// a typed outcome. Nothing above it sees a reply of Redis.
//
// It knows scripts, keys, arguments and replies, and holds by their ids only. It does not
// know owners, leases as a caller sees them, or waiters, and has no goroutines of its own.
// A request may run twice, and its reply may be lost: each script says why that does no
// harm.
package protocol

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Protocol makes the requests of one lock. It is all that differs between the types, with what only some of them can:
// see capabilities.go.
type Protocol interface {
	// Kind is the type.
	Kind() *Kind
	// NewID makes the id of a hold.
	NewID() HoldID

	// Enter asks for the first entry of a hold. If e waits, a type that keeps its
	// waiters in Redis adds this one, or gives a sign of life for its place. Enter may
	// change e for the next request, the id included.
	Enter(e *Acquire) Request[Entered]
	// Release lowers the count of a hold's entries to n; 0 ends the hold.
	Release(id string, n int) Task
	// Abandon ends a hold, whether it was granted, is waiting, or neither. With late,
	// copies of its requests may come late, and a tombstone stops them.
	Abandon(id string, late bool) Task

	// Renew makes a hold last for at least lease from now. With a lease of 0 it only
	// asks whether the hold exists.
	Renew(id string, lease time.Duration) Task

	// ForceUnlock ends all holds (of a read-write lock, the holds of this side), or only the
	// one with the id in owner. It reports whether there was one.
	ForceUnlock(holdID string) Request[bool]
	// Inspect asks who holds the lock.
	Inspect() Request[State]
	// Probe asks whether the lock is held (of a read-write lock, this side), and how
	// often a hold has been entered. The id may be empty.
	Probe(id string) Request[Probed]
	// View is equal for protocols whose Inspect returns the same state.
	View() any

	// Ready is called before the first request that may publish or draw a token.
	Ready(ctx context.Context) error
	// Prepare is called when a hold has begun that will be renewed. It sends nothing itself: see wire.Deployment.
	Prepare()
	// Listen has notify called when the waiter with an id should look; with an empty id,
	// when the lock was released. It returns nil if there is no channel to listen to.
	Listen(id string, notify func()) (end func())
}

// HoldID names one hold: an owner's time at a lock, from the first entry to the last
// release. It is never used again, so a late copy of a request about one hold cannot
// affect another. Holds that are handed over inside a client share one: see handover.go.
type HoldID struct {
	ID     string // "<client uuid>:<number>", as Redis and Java clients see it
	Number int64  // the one in ID
}

// Acquire is an acquire of a lock: its arguments, and its state from one request to the next.
type Acquire struct {
	HoldID
	Lease    time.Duration
	Wait     bool   // the caller waits if the lock is not free
	Outer    string // id of the caller's hold of the other side, under which it may enter, or ""
	Priority int
	Value    string // what the leader of an Election proclaims from the beginning
	Reserve  int    // how many more tokens to draw, for holds to which this one is handed over
	// StandBy: the caller waits, and its client is subscribed to grants. If a hold of another client keeps
	// it out, a release can make it the holder: see ReleaseNext.
	StandBy bool
	// Tells: others wait for the permits that it takes, so it publishes how many are left.
	Tells bool

	Tries   int    // requests so far, including this one
	Leads   bool   // the acquire is known to be the first of its client's waiters
	Placed  bool   // an earlier request may have left a place in Redis, or stood by
	Granted bool   // an earlier request may have been granted, without a lease being made of it
	Yields  bool   // waiters of other clients have gone first, and are likely to acquire now
	Splits  int    // requests in a row at which no owner had a quorum
	Clashes int    // how many of those requests went to all nodes
	Rival   string // hold with the most other votes at the latest of them
	Again   int    // requests in a row at which Rival had the most other votes
	Round   int64  // of a read-write lock, in which it was first refused; or NoRound
}

// NoRound is the round of an acquire that was not refused yet.
const NoRound = math.MaxInt64

// Verdict is the answer of Redis to an Enter.
type Verdict int

const (
	Granted       Verdict = iota + 1
	Busy                  // not now
	Withdrawn             // the hold was abandoned: the request was a late copy
	OuterHoldLost         // the owner's hold of the other side, under which it was to enter, is gone
	Quarantined           // the server gives out no locks yet
	OtherType             // a lock of another type, which has other keys, is held
	NotSet                // a semaphore to which no permits were given yet
	OtherNumber           // others have another number of members: Missing
	Gone                  // there is no such hold to adopt
	Entangled             // its owner holds the other side too
)

// Entered is the outcome of an Enter.
type Entered struct {
	Verdict Verdict
	Token   int64 // Granted; 0 for a shared hold
	// Rest is how long the lock is held, as far as is known: look again within it.
	// Negative: not known. Quarantined: how long the quarantine lasts.
	Rest time.Duration
	// TakenOver: the outer hold is lost, and others hold the lock.
	TakenOver bool

	Beyond bool // Busy: a semaphore has not enough permits at all, held or free

	Keeper // Busy
	Queueing
	Handed
	Supply  // of a semaphore: what is left after a grant; others can enter too, and no hold ends within Rest
	Members // of a Busy DoubleBarrier
}

// Keeper is who keeps a Busy lock from the asker.
type Keeper struct {
	// Holder is one holder, and Others is how many more there are. Both are
	// empty if the lock is free, but reserved for a waiter that goes first. Known says
	// whether the reply has that.
	Holder string
	Others int64
	Known  bool
	// Votes is what was seen of the votes for a RedLock if it is not known who holds it.
	Votes string
	// Split: no holder was seen: others ask for the votes of a RedLock at the same time.
	Split bool
}

// Queueing is where a waiter of a read-write lock stands.
type Queueing struct {
	// Round is the round in which the acquire was refused, if HasRound.
	Round    int64
	HasRound bool
}

// Handed is about holds that are given to who waits.
type Handed struct {
	// Reserved is how many more tokens were drawn: those that follow Token.
	Reserved int64
	// Found: Granted to a waiter that would have stood by, by another request before: a release,
	// or a copy of this one. Stands: Busy, and it stands by.
	Found, Stands bool
}

// Supply is how many permits a semaphore has.
type Supply struct {
	Free    int64 // may be negative
	All     int64 // free or not ...
	Counted bool  // ... if that is known
}

// Members are how many of a DoubleBarrier are still to come, and how many are in, of the generation before.
type Members struct{ Missing, Inside int64 }

// Kept is the outcome of a request about a hold.
type Kept int

const (
	Done        Kept = iota // the hold is as asked
	Removed                 // there is no such hold, and the lock is free
	TakenOver               // there is no such hold, and others hold the lock
	Overwritten             // there is no such hold: other data is at the key that had it
)

// Grant is a message that a release has made a waiter the holder.
type Grant struct {
	ID       string
	Token    int64
	Reserved int64 // how many more tokens were drawn: those that follow Token
	InRow    int   // how many holders in a row have become so, with this one
	Look     int   // the last request (Acquire.Tries) of the waiter before that
}

// State is who holds a lock.
type State struct {
	Holders []Holder
	TTL     time.Duration // rest of the longest lease; -1: it has none
	Token   int64         // 0: Redis does not show it
	Waiters int           // in Redis; -1: Redis does not keep them
	// Listeners is how many other clients listen for a release, as far as is known, if Redis does
	// not keep the waiters.
	Listeners int
	Value     string // what the leader of an Election proclaims
}

// Holder is one holder of a lock.
type Holder struct {
	HoldID string
	Count  int
	Shared bool
}

// Probed is the outcome of a Probe.
type Probed struct {
	Held    bool
	Entries int
}

// Request is a question with an outcome of type T. There are two kinds: to one server (or
// the node of a slot), and to a quorum of servers.
type Request[T any] interface {
	// Do sends the request, and waits for the outcome until the budget is spent or ctx
	// ends. The time for replicas is added to the budget.
	Do(ctx context.Context, budget time.Duration) Result[T]
}

// Result is the result of a request.
type Result[T any] struct {
	Outcome T
	Err     error // why there is no outcome; nil: there is one. See wire.LastFailure
	// TooFew is set if the outcome needs replicas to confirm it, and too few have.
	TooFew error
	// Doubt is set if a hold was renewed that may have been lost before.
	Doubt error
	// Unsure: a copy of the request other than the one that was answered may have run,
	// or may run yet.
	Unsure bool
	// Heard is how many connections got what was published; see wire.Answer.
	Heard int
}

// Task is a request that can also be sent without a waiting caller.
type Task interface {
	Request[Kept]
	// Name is a name for the request, for observers.
	Name() string
	// OfQuorum reports whether several servers are asked.
	OfQuorum() bool
	// Send sends the request as d says, and does not wait.
	Send(d Dispatch)
}

// Dispensable is a Task that a client that shuts down need not wait for in each case.
type Dispensable interface {
	// Dispensable reports whether the server is known not to answer, and what others have confirmed is
	// enough.
	Dispensable() bool
}

// Dispatch is how tasks are sent without waiting.
type Dispatch struct {
	Round *wire.Round // for a request to one deployment; sent when all tasks were added
	Recipient
}

// Recipient is for whom a task is sent.
type Recipient interface {
	// GoesOn reports whether the outcome still matters: nothing is sent otherwise.
	GoesOn() bool
	// Done is called with the outcome and the time of sending. It may never be called if
	// the same request is already under way.
	Done(sent time.Time, r Result[Kept])
}

// Site is the deployment of a client's locks, and how the client uses them.
type Site struct {
	Wire    *wire.Deployment
	Scripts Scripts
	Clock   *FencingClock
	// Served is the key of the hash that says which process of a server may grant locks with the
	// prefix, and from when.
	Served string
	// NewID makes the id of a hold.
	NewID func() HoldID
	// Listen subscribes to a channel, and ListenFor to the messages there that consist of a
	// name.
	Listen    func(channel string, notify func()) (end func())
	ListenFor func(channel, name string, notify func()) (end func())
	// ListenTo is Listen that calls onMessage with each message, instead of notify.
	// Without notify the user of Redis may not be permitted to.
	ListenTo func(channel string, notify func(), onMessage func(message string)) (end func())
	// Listening reports whether the channel with a prefix and the rest of its name is
	// subscribed.
	Listening func(prefix, rest string) bool
	// MayBeSubscribed reports whether a channel is subscribed, or may be.
	MayBeSubscribed func(channel string) bool
	// Client is the first part of the ids that NewID makes.
	Client string
	// CommandTimeout bounds a request that has no budget of its own.
	CommandTimeout time.Duration
	// WaiterLease is how long a sign of life of a waiter is valid.
	WaiterLease time.Duration
	// Quarantine is how long a new server grants no locks; 0: there is no quarantine.
	Quarantine time.Duration

	lastMillis atomic.Pointer[boxedMillis] // see millis
}

// TombstoneTTL is how long after the end of a hold late copies of its requests are stopped.
// A copy that is under way for longer has outlived every timeout of client and server.
const TombstoneTTL = time.Minute

// GiveUpGrace is how long a caller whose wait is over waits to see its acquire undone.
// Redis answers within it unless there is a failure.
const GiveUpGrace = 100 * time.Millisecond

// InQuarantine is why a server grants no lock, or a node does not vote, yet.
type InQuarantine struct{ Left time.Duration }

// Error implements error.
func (e InQuarantine) Error() string {
	return fmt.Sprintf("in quarantine for %v, after a restart or a loss of data", e.Left.Round(time.Millisecond))
}
