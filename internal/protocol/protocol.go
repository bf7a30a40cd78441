// Package protocol makes the requests of each type of lock, and reads each reply once, into
// a typed outcome. The packages above it get no raw replies of Redis.
//
// It deals with scripts, keys, arguments and replies, and identifies holds by their ids. Owners,
// leases as a caller gets them, and waiters are not its subject, and it has no goroutines of its own.
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

// Protocol makes the requests of one lock. Types differ only in their protocols. A type with more abilities
// implements more interfaces: see capabilities.go.
type Protocol interface {
	// Kind returns the type of the lock.
	Kind() *Kind
	// NewID makes the id of a hold.
	NewID() HoldID

	// Enter requests the first entry of a hold. If e waits, a type that keeps its
	// waiters in Redis adds this waiter, or renews its place. Enter may change e, including
	// its id, for the next request.
	Enter(e *Acquire) Request[Entered]
	// Release lowers the count of a hold's entries to n; 0 ends the hold.
	Release(id string, n int) Task
	// Abandon ends a hold, whether it was granted, is waiting, or neither. If lateCopies is true,
	// copies of its requests may still arrive, and a tombstone stops them.
	Abandon(id string, lateCopies bool) Task

	// Renew makes a hold last for at least lease from now. With a lease of 0 it only
	// checks whether the hold exists.
	Renew(id string, lease time.Duration) Task

	// ForceUnlock ends the hold with an id, or all holds if the id is empty (of a read-write lock,
	// the holds of this side). It reports whether it has ended any.
	ForceUnlock(holdID string) Request[bool]
	// Inspect requests the holders of the lock.
	Inspect() Request[State]
	// Probe requests whether the lock is held (of a read-write lock, this side), and how
	// often the hold with an id has been entered. The id may be empty.
	Probe(id string) Request[Probed]
	// View is equal for protocols whose Inspect returns the same state.
	View() any

	// Ready is called before the first request that may publish or draw a token.
	Ready(ctx context.Context) error
	// Prepare is called when a hold that will be renewed has begun. It sends no request: see wire.Deployment.
	Prepare()
	// Listen calls notify when the waiter with an id should send a request; with an empty id,
	// when the lock was released. It returns nil if there is no channel to subscribe to.
	Listen(id string, notify func()) (end func())
}

// HoldID names one hold: an owner's time at a lock, from the first entry to the last
// release. It is never used again, so a late copy of a request about one hold cannot
// affect another. Holds that are handed over inside a client share one: see handover.go.
type HoldID struct {
	ID     string // "<client uuid>:<number>", as Redis and Java clients see it
	Number int64  // the number in ID
}

// Acquire is an acquire of a lock: its arguments, and its state from one request to the next.
type Acquire struct {
	HoldID
	Lease    time.Duration
	Wait     bool   // the caller waits if the lock is not free
	Outer    string // id of the caller's hold of the other side, under which it may enter, or ""
	Priority int
	Value    string // first value that the leader of an Election proclaims
	Reserve  int    // additional tokens to draw, for the owners to whom the hold is handed over
	// StandBy: the caller waits, and its client is subscribed to grants. If a hold of another client keeps
	// it out, a release can make it the holder: see ReleaseNext.
	StandBy bool
	// ReportsLeft: others wait for permits of the semaphore, so a grant publishes how many are left.
	ReportsLeft bool

	Tries       int    // requests so far, including this one
	Leads       bool   // the acquire is known to be the first of its client's waiters
	Placed      bool   // an earlier request may have left a place in Redis, or stood by
	Granted     bool   // an earlier request may have been granted, without a lease being made of it
	Yields      bool   // waiters of other clients have gone first, and are likely to acquire now
	Splits      int    // consecutive requests at which no owner had a quorum
	Clashes     int    // number of requests counted in Splits that went to all nodes
	Rival       string // hold with the most other votes at the latest request counted in Splits
	RivalStreak int    // consecutive requests at which Rival had the most other votes
	Round       int64  // round of a read-write lock in which the acquire was first refused; NoRound before
}

// NoRound is the round of an acquire that has not been refused.
const NoRound = math.MaxInt64

// Verdict is the answer of Redis to an Enter.
type Verdict int

const (
	Granted       Verdict = iota + 1
	Busy                  // the lock is not free for this acquire
	Withdrawn             // the hold was abandoned: the request was a late copy
	OuterHoldLost         // the owner's hold of the other side, under which it was to enter, is gone
	Quarantined           // the server grants no locks yet
	OtherType             // a lock of another type with this name is held, under other keys
	NotSet                // the number of permits of the semaphore is not set
	OtherNumber           // other processes use another number of members, which is in Missing
	Gone                  // no hold to adopt exists
	Entangled             // the owner of the hold to adopt also holds the other side
)

// Entered is the outcome of an Enter.
type Entered struct {
	Verdict Verdict
	Token   int64 // Granted; 0 for a shared hold
	// Rest is how long the lock is still held, as far as known: the next request should be sent within it.
	// Negative if unknown. If Quarantined, how long the quarantine lasts.
	Rest time.Duration
	// TakenOver: OuterHoldLost, and others hold the lock.
	TakenOver bool

	Beyond bool // Busy, and the semaphore has fewer permits in all, held or free, than were requested

	Keeper // Busy
	Queueing
	Handed
	Supply  // semaphore: permits left after a grant; others can enter too, and no hold ends within Rest
	Members // Busy DoubleBarrier
}

// Keeper names the holders of a Busy lock.
type Keeper struct {
	// Holder is the id of one holder, and Others is how many more there are. Both are
	// zero if the lock is free, but reserved for a waiter that goes first. Known reports
	// whether the reply has both.
	Holder string
	Others int64
	Known  bool
	// Votes describes the votes for a RedLock if its holder is unknown.
	Votes string
	// Split: no reply showed a holder, because others request the votes of a RedLock at the same time.
	Split bool
}

// Queueing is the place of a waiter of a read-write lock.
type Queueing struct {
	// Round is the round in which the acquire was refused, if HasRound.
	Round    int64
	HasRound bool
}

// Handed has the part of a reply that hand-overs and waiters that stand by need.
type Handed struct {
	// Reserved is the number of additional tokens drawn: the numbers after Token.
	Reserved int64
	// Found: Granted to a waiter that offered to stand by, but by a request before this one: a release, or another copy of
	// this request. Stands: Busy, and the waiter stands by.
	Found, Stands bool
}

// Supply is how many permits a semaphore has.
type Supply struct {
	Free    int64 // free permits; may be negative
	All     int64 // all permits, held or free; valid if Counted
	Counted bool  // All is known
}

// Members counts members of a DoubleBarrier: Missing have not arrived, and Inside belong to the previous
// generation and have not left.
type Members struct{ Missing, Inside int64 }

// Kept is the outcome of a request about a hold.
type Kept int

const (
	Done        Kept = iota // the hold is as requested
	Removed                 // the hold does not exist, and the lock is free
	TakenOver               // the hold does not exist, and others hold the lock
	Overwritten             // the hold does not exist: other data has replaced it at its key
)

// Grant is the message of a release that has made a waiter the holder.
type Grant struct {
	ID       string
	Token    int64
	Reserved int64 // number of additional tokens drawn: the numbers after Token
	InRow    int   // consecutive releases with a grant, including this one
	Poll     int   // number (Acquire.Tries) of the waiter's last request before the grant
}

// State has the holders of a lock.
type State struct {
	Holders []Holder
	TTL     time.Duration // rest of the longest lease; -1 if a lease does not end
	Token   int64         // 0 if Redis does not show the token
	Waiters int           // waiters in Redis; -1 if Redis does not keep them
	// Listeners is how many other clients are known to be subscribed to releases. It is set if Redis
	// does not keep the waiters.
	Listeners int
	Value     string // value that the leader of an Election proclaims
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

// Request is a request with an outcome of type T. It is sent to one server (or the node of a slot), or to
// a quorum of servers.
type Request[T any] interface {
	// Do sends the request, and waits for the outcome until the budget is spent or ctx
	// ends. The time for replicas is added to the budget.
	Do(ctx context.Context, budget time.Duration) Result[T]
}

// Result is the result of a request.
type Result[T any] struct {
	Outcome T
	Err     error // why Outcome is not set; see wire.LastFailure
	// TooFew is set if replicas have to confirm the outcome, and too few have.
	TooFew error
	// Doubt is set if the hold was renewed, but may have been lost before.
	Doubt error
	// Unsure: a copy of the request other than the one that was answered may have run,
	// or may still run.
	Unsure bool
	// Receivers is how many connections got the published message; see wire.Answer.
	Receivers int
}

// Task is a request that can also be sent without a waiting caller.
type Task interface {
	Request[Kept]
	// Name returns the name of the request for observers.
	Name() string
	// OfQuorum reports whether the request goes to several servers.
	OfQuorum() bool
	// Send sends the request as d specifies, and does not wait.
	Send(d Dispatch)
}

// Dispensable is a Task for which a shutdown of the client need not always wait.
type Dispensable interface {
	// Dispensable reports whether the server is known to be silent, and the confirmations of the other
	// servers are enough.
	Dispensable() bool
}

// Dispatch is how tasks are sent without waiting.
type Dispatch struct {
	Round *wire.Round // takes a request to one deployment; it is sent when all tasks have been added
	Recipient
}

// Recipient gets the outcome of a task.
type Recipient interface {
	// GoesOn reports whether the outcome still matters. If it does not, the task is not sent.
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
	// Served is the key of a hash. It has the process of the server that may grant locks with the
	// prefix, and the time from which it may.
	Served string
	// NewID makes the id of a hold.
	NewID func() HoldID
	// Listen subscribes to a channel. ListenFor calls notify only for messages that consist of name.
	Listen    func(channel string, notify func()) (end func())
	ListenFor func(channel, name string, notify func()) (end func())
	// ListenTo is Listen that calls onMessage with each message, instead of notify.
	// If notify is nil, the user of Redis may lack the permission.
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
	// Quarantine is how long a new server grants no locks; 0 without a quarantine.
	Quarantine time.Duration

	lastMillis atomic.Pointer[boxedMillis] // see millis
}

// TombstoneTTL is how long after the end of a hold a tombstone stops late copies of its requests.
// A copy that is under way for longer has outlived every timeout of client and server.
const TombstoneTTL = time.Minute

// GiveUpGrace is how long a caller whose wait has ended waits for the reply that its acquire was undone.
// Redis replies within this time unless there is a failure.
const GiveUpGrace = 100 * time.Millisecond

// InQuarantine is the error of a server in quarantine, which does not grant a lock or vote yet.
type InQuarantine struct{ Left time.Duration }

// Error implements error.
func (e InQuarantine) Error() string {
	return fmt.Sprintf("in quarantine for %v, after a restart or a loss of data", e.Left.Round(time.Millisecond))
}
