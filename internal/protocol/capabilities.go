package protocol

import (
	"cmp"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Each ability that only some types have is an interface in this file. Embedding does not add abilities: a type
// without an ability does not have its methods. The functions below query the abilities of a protocol, and return a
// default for a protocol without the ability. Kinds lists the types.

// Is reports whether a protocol implements T, one of the interfaces of this file.
func Is[T any](p Protocol) bool {
	_, is := p.(T)
	return is
}

// property returns the result of get, or the zero value if the protocol does not implement I.
func property[I, T any](p Protocol, get func(I) T) (none T) {
	if i, can := p.(I); can {
		return get(i)
	}
	return none
}

// Reentrant is a protocol whose holds can be entered again by their owners. With any other protocol,
// each acquire begins a separate hold.
type Reentrant interface {
	Protocol
	// Reenter sets the count of a hold's entries to n, and makes the hold last for at
	// least lease from now. If confirm is true, and the client requires it, replicas confirm the change.
	Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept]
}

// HandedOver is a protocol whose holds can be handed over inside a client: no order among clients
// is promised, and tokens can be drawn ahead.
type HandedOver interface{ HandsOver() }

// StandBy is a protocol whose release can make a waiter of another client the holder, if one stands by: see
// Acquire.StandBy.
type StandBy interface {
	// StandsBy reports whether the server and the options of the client permit ReleaseNext.
	StandsBy() bool
	// ReleaseNext is the last Release of a hold, and makes a waiter the holder in the same step. token is the hold's
	// token; inRow is the number of consecutive releases with a grant, including this one.
	ReleaseNext(id string, token int64, inRow int) Task
	// SubscribeToGrants calls granted for each waiter of the client that a release has made the holder. It returns nil
	// if there is no channel to subscribe to.
	SubscribeToGrants(granted func(Grant)) (end func())
}

// StandByOf returns p as a StandBy, or nil if ReleaseNext cannot be used.
func StandByOf(p Protocol) StandBy {
	if s, can := p.(StandBy); can && s.StandsBy() {
		return s
	}
	return nil
}

// Identified is a protocol with a channel for each client that waits, so the subscribed channels show which
// clients wait. The channel of all waiters shows only their number.
type Identified interface {
	// Identify subscribes to the channel of this client. It returns nil if it cannot subscribe yet.
	Identify() (end func())
}

// Identify shows that this client waits. It returns nil if it cannot subscribe, now or ever.
func Identify(p Protocol) (end func()) { return property(p, Identified.Identify) }

// Queue is a protocol whose waiters may have a place in Redis. Each request renews the place, and an
// abandoned acquire has to remove it.
type Queue interface {
	KeepsPlace() bool // false for preferred readers
	// EachWaits reports whether Redis keeps the order of the waiters. Then each waiter
	// sends requests, not only the head of the line in its client.
	EachWaits() bool
	// Listening reports whether Listen needs no command, because the channel of the waiter
	// with that id is already subscribed.
	Listening(id string) bool
}

// eachWaits is embedded by a Queue whose order Redis keeps.
type eachWaits struct{}

func (eachWaits) KeepsPlace() bool { return true }
func (eachWaits) EachWaits() bool  { return true }

// KeepsPlace reports whether a waiter has a place in Redis.
func KeepsPlace(p Protocol) bool { return property(p, Queue.KeepsPlace) }

// EachWaits reports whether each waiter sends requests.
func EachWaits(p Protocol) bool { return property(p, Queue.EachWaits) }

// Listening reports whether the waiter with an id need not subscribe.
func Listening(p Protocol, id string) bool {
	return property(p, func(q Queue) bool { return q.Listening(id) })
}

// Taking is a protocol whose holds take permits of a semaphore.
type Taking interface{ Takes() int }

// Takes returns how many permits a hold takes. It returns 0 for a lock without permits, whose holds are
// exclusive, or shared by any number.
func Takes(p Protocol) int { return property(p, Taking.Takes) }

// Polled is a protocol that Glance can poll. With any other protocol, only Enter can find out whether the
// lock may be free, or Enter renews the waiter's place.
type Polled interface{ Glanced() *HashLock }

// GlancedOf returns the lock that Glance can poll for a waiter, or nil.
func GlancedOf(p Protocol) *HashLock { return property(p, Polled.Glanced) }

// Paced is a protocol whose waiters send requests more often than others.
type Paced interface {
	// LongestPause bounds a waiter's pause after its request number turn, from 0.
	LongestPause(who int64, turn int) time.Duration
}

// LongestPause bounds a waiter's pause.
func LongestPause(p Protocol, who int64, turn int) time.Duration {
	pause := property(p, func(s Paced) time.Duration { return s.LongestPause(who, turn) })
	return cmp.Or(pause, math.MaxInt64)
}

// Hesitant is a protocol whose waiters pause between a message and their request.
type Hesitant interface {
	// Hesitation bounds the random pause between a message and the request. clashes is the number of
	// consecutive requests with split votes. crowd reports whether several other clients wait.
	Hesitation(clashes int, crowd bool) time.Duration
}

// Hesitation bounds the pause between a message and the request.
func Hesitation(p Protocol, clashes int, crowd bool) time.Duration {
	return property(p, func(h Hesitant) time.Duration { return h.Hesitation(clashes, crowd) })
}

// Guarded is a protocol whose fixed leases other clients may shorten in Redis, so they have to be
// restored.
type Guarded interface{ GuardsFixedLease() }

// Quorum is a protocol that sends its requests to several servers.
type Quorum interface{ Wires() []*wire.Deployment }

// Bounded is a protocol whose leases are bounded by more than their drift.
type Bounded interface {
	// Margin is subtracted from the validity of each lease, in addition to the drift.
	Margin() time.Duration
	// LongestLease bounds the leases of the lock; 0 if only MaxLease does.
	LongestLease() time.Duration
}

// Margin returns how much is subtracted from the validity of each lease.
func Margin(p Protocol) time.Duration { return property(p, Bounded.Margin) }

// LongestLease bounds the leases of the lock; 0 if only MaxLease does.
func LongestLease(p Protocol) time.Duration { return property(p, Bounded.LongestLease) }

// Revocable is a protocol whose holders can get a request to release the lock.
type Revocable interface{ Revocation() Revocation }

// RevocationOf returns the Revocation of a protocol, or nil if its holders cannot get a request to release.
func RevocationOf(p Protocol) Revocation { return property(p, Revocable.Revocation) }

// Growing is a protocol whose waiters stay out of the queue while they request more permits than exist: no
// release can serve them.
type Growing interface {
	Protocol
	// ListenForMore calls notify when permits were added. It returns nil if it cannot subscribe, now or
	// ever.
	ListenForMore(notify func()) (end func())
}

// Crowded is a protocol whose messages wake many clients, of which few can enter.
type Crowded interface {
	// SubscribeToFreed calls freed when permits were given back, with the number of free permits in the message, or 0 if
	// the message has none. It calls notify when messages may have been missed.
	//
	// SubscribeToTaken calls taken with the permits left after an acquire with ReportsLeft. Both return nil if they cannot
	// subscribe, now or ever.
	SubscribeToFreed(notify func(), freed func(n int64)) (end func())
	SubscribeToTaken(taken func(left int64)) (end func())
}
