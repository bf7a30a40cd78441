package rlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// owner is who holds locks: one chain of calls, what Redisson would call a
// thread. It lives in contexts and never leaves the process; Redis sees an id
// of each stay of an owner at a lock.
type owner struct {
	mu    sync.Mutex // guards seats and the fields of each that say so
	seats []*seat    // few: the locks that this owner holds or is entering
}

type ownerKey struct{}

// WithOwner returns a context with a new owner. Everything that is called with
// it, or with contexts made from it, is one owner: it may enter again a lock
// that it holds. Without WithOwner each Lock and TryLock makes an owner of its
// own, which Lease.Context hands on.
//
// Two goroutines that use one owner do not exclude each other.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, &owner{})
}

// WithoutOwner returns a context without an owner: what is called with it is a
// stranger to the caller and excluded from the locks that the caller holds.
func WithoutOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, (*owner)(nil))
}

func ownerFrom(ctx context.Context) *owner {
	o, _ := ctx.Value(ownerKey{}).(*owner)
	return o
}

// seat is one owner's place at one lock. It lets the owner do one thing at a
// time there, so that two re-entries, or a re-entry and a release, cannot
// overtake each other on their way to Redis.
//
// The two sides of a read-write lock are one seat.
type seat struct {
	owner  *owner
	client *Client
	lock   lockID
	turn   chan struct{} // holds one item while somebody operates

	users int  // guarded by owner.mu: operations under way
	entry bool // guarded by owner.mu: one of them waits for the lock
	// entered is closed when entry becomes true; made by who wants to know.
	// Guarded by owner.mu.
	entered chan struct{}
	// holds are what the owner has, by side. Guarded by owner.mu, and changed by
	// who has the turn only.
	holds [2]*hold
}

// seat finds the owner's seat at a lock, or adds it, and counts a user.
func (o *owner) seat(c *Client, lock lockID) *seat {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.seats {
		if s.client == c && s.lock == lock {
			s.users++
			return s
		}
	}
	s := &seat{owner: o, client: c, lock: lock, turn: make(chan struct{}, 1), users: 1}
	o.seats = append(o.seats, s)
	return s
}

// find is seat for a look only.
func (o *owner) find(c *Client, lock lockID, side side) *hold {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.seats {
		if s.client == c && s.lock == lock {
			return s.holds[side]
		}
	}
	return nil
}

// leave ends what seat began. A seat without users and hold is forgotten.
func (s *seat) leave() {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.users--
	s.drop()
}

func (s *seat) drop() {
	if s.users > 0 || s.holds != [2]*hold{} {
		return
	}
	seats := s.owner.seats
	if i := slices.Index(seats, s); i >= 0 {
		s.owner.seats = slices.Delete(seats, i, i+1)
	}
}

// take waits for the turn; give hands it on.
func (s *seat) take(ctx context.Context) error {
	if s.tryTake() {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.client.closing:
		return ErrClosed
	}
}

// takeWithin is take with a bound, for which most calls need no timer. It goes on
// while the client shuts down: it is for Unlock.
func (s *seat) takeWithin(ctx context.Context, d time.Duration) error {
	if s.tryTake() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *seat) tryTake() bool {
	select {
	case s.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *seat) give() { <-s.turn }

// setHold records that the owner holds the lock.
func (s *seat) setHold(h *hold) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.holds[h.core.side] = h
}

// clearHold records that all leases of a hold are unlocked. An Unlock that did
// not get its turn may find a newer hold there.
func (s *seat) clearHold(h *hold) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	if s.holds[h.core.side] == h {
		s.holds[h.core.side] = nil
		s.drop()
	}
}

func (s *seat) held(side side) *hold {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	return s.holds[side]
}

// setEntry marks that the seat's operation waits for the lock, perhaps for
// long, so that a TryLock of the same owner need not wait for it.
func (s *seat) setEntry(on bool) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.entry = on
	if on && s.entered != nil {
		close(s.entered)
		s.entered = nil
	}
}

var errEntering = errors.New("its owner is waiting for it elsewhere")

// takeUnlessEntering is take for who would not wait for the lock: it fails if
// another operation of the owner does, or begins to.
func (s *seat) takeUnlessEntering(ctx context.Context) error {
	if s.tryTake() {
		return nil
	}
	s.owner.mu.Lock()
	if s.entry {
		s.owner.mu.Unlock()
		return because(ErrNotAcquired, errEntering)
	}
	if s.entered == nil {
		s.entered = make(chan struct{})
	}
	entered := s.entered
	s.owner.mu.Unlock()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-entered:
		return because(ErrNotAcquired, errEntering)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.client.closing:
		return ErrClosed
	}
}
