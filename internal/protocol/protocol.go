// Package protocol is what each type of lock asks of Redis, and how it reads the
// replies: once, into typed outcomes. Nothing above it sees a reply of Redis.
//
// A request may run twice, and its reply may be lost. The scripts say why that does no
// harm. Package protocol knows holds by their ids only: whose they are, and what
// becomes of them, is up to the caller.
package protocol

import (
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Protocol is one lock, as its type asks for it: all that tells the types apart.
type Protocol interface {
	// NewID makes the id of a hold.
	NewID() HoldID

	// Enter asks for the first entry of a hold. If e waits, a type that keeps its
	// waiters in Redis adds this one, or keeps its place fresh. It may change what e
	// carries from look to look, the id included.
	Enter(e *Entry) Request[Entered]
	// Reenter makes n the count of a hold's entries, and the hold last for lease from
	// now, at least. With confirm, replicas confirm it if the client wants that.
	Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept]
	// Release leaves n entries of a hold; 0 ends it.
	Release(id string, n int) Task
	// Abandon ends a hold however far its owner got: entered, waiting or nothing. If
	// copies of its requests may come late, it sees to it that they do nothing.
	Abandon(id string, late bool) Task
	// Renew makes a hold last for lease from now, at least. With a lease of 0 it only
	// asks whether the hold is there.
	Renew(id string, lease time.Duration) Task

	// ForceUnlock ends all holds, of a read-write lock those of this side; or an
	// owner's only. It reports whether there was one.
	ForceUnlock(owner string) Request[bool]
	// Inspect asks who holds the lock.
	Inspect() Request[State]
	// Probe asks whether the lock is held, of a read-write lock this side of it, and
	// how often a hold has been entered. The id may be empty.
	Probe(id string) Request[Probed]
	// View is equal for protocols whose Inspect shows the same.
	View() any

	// Ready is called before the first request that may publish.
	Ready(ctx context.Context) error
	// Listen has notify called when a waiter with an id should look, or anybody if
	// the id is empty. It returns nil if there is nothing to listen to, now or ever.
	Listen(id string, notify func()) (end func())

	// QueuedInRedis: Redis keeps the order of the waiters, so each of them asks by
	// itself.
	QueuedInRedis() bool
	// KeepsPlace: a waiter has a place in Redis, to be kept fresh by looking, and
	// taken away when it gives up.
	KeepsPlace() bool
	// LongestPause bounds a waiter's pause after its look number turn, from 0.
	LongestPause(who int64, turn int) time.Duration
	// Hesitation is a pause, random up to this, between a message and the look.
	Hesitation() time.Duration
	// GuardsFixedLease: the end of a fixed lease in Redis may be cut short by other
	// clients, and has to be put back.
	GuardsFixedLease() bool
	// Margin is what is taken off the validity of each lease beside the drift.
	Margin() time.Duration
	// LongestLease bounds the leases of the lock; 0: nothing but MaxLease does.
	LongestLease() time.Duration
}

// HoldID names one hold: an owner's time at a lock, from its first entry until it has
// left. It is never used again, so a late copy of a request about one hold cannot touch
// another.
type HoldID struct {
	ID     string // "<client uuid>:<number>", as Redis and Java clients see it
	Number int64  // in the client
}

// Entry is what an acquire carries from look to look.
type Entry struct {
	HoldID
	Lease    time.Duration
	Wait     bool   // it waits if the lock is not free
	Outer    string // id of the caller's hold of the other side, under which it may enter; empty: none
	Priority int

	Tries   int   // looks so far, this one included
	Leads   bool  // it is the first of its client's waiters, as far as is known
	Placed  bool  // an earlier look may have left a place in Redis
	Granted bool  // an earlier look may have been granted, and no lease was made of it
	Splits  int   // looks in a row at which nobody had a quorum
	Round   int64 // that it has waited since, where waiters are admitted in rounds; or NoRound
}

// NoRound is the round of an acquire that was not refused yet.
const NoRound = math.MaxInt64

// Verdict is how Redis answered an Enter.
type Verdict int

const (
	Granted       Verdict = iota + 1
	Busy                  // not now
	Withdrawn             // this id was given up: the request was a late copy
	OuterHoldLost         // the hold of the other side is gone, under which it was to enter
	Quarantined           // the server gives out no locks yet
	OtherType             // a lock of another type, which has other keys, is held
)

// Entered is the outcome of an Enter.
type Entered struct {
	Verdict Verdict
	Token   int64 // Granted; 0 for a shared hold
	// Rest is for how long the lock is held, as far as is known: look again within
	// it. Negative: there is no telling. Quarantined: for how long.
	Rest time.Duration
	// Holder is who holds the lock if it is Busy, and Others how many more; both empty
	// if nobody does, and it is kept for one who goes first. Known says whether the
	// reply told.
	Holder string
	Others int64
	Known  bool
	// Round is that in which the acquire was refused, if HasRound.
	Round    int64
	HasRound bool
	// TakenOver: the outer hold is lost, and others hold the lock.
	TakenOver bool
}

// Kept is the outcome of a request about a hold.
type Kept int

const (
	Done      Kept = iota // the hold is as asked
	Removed               // there is no such hold, and nobody holds the lock
	TakenOver             // there is no such hold, and others hold the lock
)

// State is who holds a lock.
type State struct {
	Holders []Holder
	TTL     time.Duration // rest of the longest lease; -1: it has none
	Token   int64         // 0: Redis does not show it
	Waiters int           // in Redis; -1: Redis does not keep them
}

// Holder is one holder of a lock.
type Holder struct {
	Owner  string
	Count  int
	Shared bool
}

// Probed is the outcome of a Probe.
type Probed struct {
	Held    bool
	Entries int
}

// Request is something to ask, whose outcome is a T. There are two kinds: of one
// server (or a slot of a cluster), and of a quorum of servers.
type Request[T any] interface {
	// Do asks, and waits for the outcome until the budget is spent or ctx ends. Time
	// for replicas is added to the budget.
	Do(ctx context.Context, budget time.Duration) Result[T]
}

// Result is what became of a request.
type Result[T any] struct {
	Outcome T
	Err     error // why there is no outcome; nil: there is
	// TooFew says, of an outcome that needs replicas to confirm it, that too few have.
	TooFew error
	// Unsure: a copy of the request other than the one that was answered may have run,
	// or may run yet.
	Unsure bool
	// Last is how copies have failed, if a context ended the request and Err says so.
	Last error
	// OfQuorum: several servers were asked, of which some may have answered.
	OfQuorum bool
}

// Task is a request that can also be sent without a caller who waits.
type Task interface {
	Request[Kept]
	// Name is a name for the request, for observers.
	Name() string
	// OfQuorum reports whether several servers are asked.
	OfQuorum() bool
	// Send sends the request as d says, and does not wait.
	Send(d Dispatch)
}

// Dispatch is how tasks are sent without waiting.
type Dispatch struct {
	Round *wire.Round // what is sent together on one deployment; sent after all were added
	Lanes *wire.Lanes // the ways to several
	// Renewal: the one who sends the round wants to hear what became of it.
	Renewal bool
	// GoesOn reports whether the outcome still matters: nothing is sent otherwise.
	GoesOn func() bool
	// Done is called with the outcome, and when the request was sent; perhaps never,
	// if the same is under way already.
	Done func(sent time.Time, r Result[Kept])
}

// Site is where the locks of a client live, and how it uses them.
type Site struct {
	Wire    *wire.Deployment
	Scripts Scripts
	// NewID makes the id of a hold.
	NewID func() HoldID
	// Listen subscribes to a channel.
	Listen func(channel string, notify func()) (end func())
	// CommandTimeout bounds a request that has no budget of its own.
	CommandTimeout time.Duration
	// WaiterLease is for how long a sign of life of a waiter is good.
	WaiterLease time.Duration
	// Acks is how many replicas confirm each lease, within AckTimeout.
	Acks       int
	AckTimeout time.Duration
	// Quarantine is for how long a server that is new gives out no locks; 0: it does
	// at once.
	Quarantine time.Duration
}

// TombstoneTTL is for how long after the end of a hold its late copies are
// stopped. A copy that is under way for longer has outlived every time-out
// of client and server.
const TombstoneTTL = time.Minute

// everyday is how most types wait and hold.
type everyday struct{}

func (everyday) QueuedInRedis() bool                   { return false }
func (everyday) KeepsPlace() bool                      { return false }
func (everyday) LongestPause(int64, int) time.Duration { return math.MaxInt64 }
func (everyday) Hesitation() time.Duration             { return 0 }
func (everyday) GuardsFixedLease() bool                { return false }
func (everyday) Margin() time.Duration                 { return 0 }
func (everyday) LongestLease() time.Duration           { return 0 }
