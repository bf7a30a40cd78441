package protocol

import (
	"cmp"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// What only some types can is an interface each, and none of it is inherited: a type that cannot do a thing does not
// have its methods. The functions here tell what a protocol can, and what is so of one that cannot. Kinds has the
// types, by what they can.

// Is reports whether a protocol can what an interface of these says.
func Is[T any](p Protocol) bool {
	_, is := p.(T)
	return is
}

// property is what a protocol says of itself by an interface of these; zero: it does not.
func property[I, T any](p Protocol, says func(I) T) (none T) {
	if i, can := p.(I); can {
		return says(i)
	}
	return none
}

// Reentrant is a protocol whose holds can be entered again by their owners. Of any other,
// each acquire begins a hold of its own.
type Reentrant interface {
	Protocol
	// Reenter sets the count of a hold's entries to n, and makes the hold last for at
	// least lease from now. With confirm, replicas confirm it if the client wants that.
	Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept]
}

// HandedOver is a protocol whose holds can be handed over inside a client: no order among clients
// is promised, and tokens can be drawn ahead.
type HandedOver interface{ HandsOver() }

// StandBy is a protocol whose release can make a waiter of another client the holder, if one stands by: see
// Acquire.StandBy.
type StandBy interface {
	// StandsBy reports whether ReleaseNext can be asked: not of each server.
	StandsBy() bool
	// ReleaseNext is the last Release of a hold that makes a waiter the holder in the same
	// step. token is the hold's token; inRow is how many holders in a row have become so by a release, with the
	// next one.
	ReleaseNext(id string, token int64, inRow int) Task
	// ListenForGrants makes told be called for each waiter of the client that a release has made the
	// holder. It returns nil if there is no channel to listen to.
	ListenForGrants(told func(Grant)) (end func())
}

// StandByOf is p if ReleaseNext can be asked; or nil.
func StandByOf(p Protocol) StandBy {
	if s, can := p.(StandBy); can && s.StandsBy() {
		return s
	}
	return nil
}

// Queue is a protocol whose waiters may have a place in Redis. Each request is a sign of
// life for it, and an abandoned acquire has to remove it.
type Queue interface {
	KeepsPlace() bool // not of readers that are preferred
	// EachWaits reports whether Redis keeps the order of the waiters. Then each of
	// them asks Redis, not only the head of the line in its client.
	EachWaits() bool
	// Listening reports whether Listen needs no command, since the channel for the waiter
	// with that id is subscribed already.
	Listening(id string) bool
}

// eachWaits is part of a Queue whose order Redis keeps.
type eachWaits struct{}

func (eachWaits) KeepsPlace() bool { return true }
func (eachWaits) EachWaits() bool  { return true }

// KeepsPlace reports whether a waiter has a place in Redis.
func KeepsPlace(p Protocol) bool { return property(p, Queue.KeepsPlace) }

// EachWaits reports whether each waiter asks Redis.
func EachWaits(p Protocol) bool { return property(p, Queue.EachWaits) }

// Listening reports whether the waiter with an id need not subscribe.
func Listening(p Protocol, id string) bool {
	return property(p, func(q Queue) bool { return q.Listening(id) })
}

// Taking is a protocol whose holds take permits of a semaphore.
type Taking interface{ Takes() int }

// Takes is how many permits a hold takes; 0: there are none, and a
// hold is either exclusive or shared with any number.
func Takes(p Protocol) int { return property(p, Taking.Takes) }

// Polled is a protocol that Glance can poll. For any other, only Enter finds out whether the
// lock may be free, or it keeps the waiter's place.
type Polled interface{ Glanced() *HashLock }

// GlancedOf is what Glance can look at for a waiter; or nil.
func GlancedOf(p Protocol) *HashLock { return property(p, Polled.Glanced) }

// Paced is a protocol whose waiters look more often than others.
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
	// Hesitation bounds the random pause between a message and the request, after so many requests in
	// a row with split votes. crowd: several other clients wait.
	Hesitation(clashes int, crowd bool) time.Duration
}

// Hesitation bounds the pause between a message and the request.
func Hesitation(p Protocol, clashes int, crowd bool) time.Duration {
	return property(p, func(h Hesitant) time.Duration { return h.Hesitation(clashes, crowd) })
}

// Guarded is a protocol of which other clients may shorten a fixed lease in Redis,
// so that it has to be restored.
type Guarded interface{ GuardsFixedLease() }

// Quorum is a protocol that asks several servers.
type Quorum interface{ Wires() []*wire.Deployment }

// Bounded is a protocol whose leases are bounded by more than their drift.
type Bounded interface {
	// Margin is subtracted from the validity of each lease, in addition to the drift.
	Margin() time.Duration
	// LongestLease bounds the leases of the lock; 0: only MaxLease does.
	LongestLease() time.Duration
}

// Margin is what is subtracted from the validity of each lease.
func Margin(p Protocol) time.Duration { return property(p, Bounded.Margin) }

// LongestLease bounds the leases of the lock; 0: only MaxLease does.
func LongestLease(p Protocol) time.Duration { return property(p, Bounded.LongestLease) }

// Revocable is a protocol whose holders can be asked to release the lock.
type Revocable interface{ Revocation() Revocation }

// RevocationOf is how holders are asked; nil: they cannot be.
func RevocationOf(p Protocol) Revocation { return property(p, Revocable.Revocation) }

// Growing is a protocol whose waiters stay outside of the queue while there is too little for
// them, no matter which of them leaves.
type Growing interface {
	Protocol
	// ListenForMore has notify called when there is more. It returns nil if it cannot, now or
	// ever.
	ListenForMore(notify func()) (end func())
}

// Crowded is a protocol of which a message has many clients look, and few of them can enter.
type Crowded interface {
	// Hear makes freed be called when permits were given back, with how many are free, as far as the
	// message says, and notify when messages may have been missed. It returns nil if it cannot,
	// now or ever. So does HearTaken, which makes taken be called when an acquire that Tells has left so
	// many.
	Hear(notify func(), freed func(n int64)) (end func())
	HearTaken(taken func(left int64)) (end func())
}
