package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/quorum"
)

// MultiLock is several locks as one, all or nothing, of any types and on any deployments: the
// counterpart of Redisson's RMultiLock. MultiLocks with common members do not deadlock. Two locks of one
// name on one deployment are one lock, also of two Clients: a MultiLock of both would wait for itself.
// Details: https://go-rlock.github.io/rlock/latest/locks/#multilock
type MultiLock struct {
	name    string
	members []Locker // in the order in which a round acquires them
	multiConfig
}

var _ Locker = (*MultiLock)(nil)

// NewMultiLock returns the lock of all given locks, a []Locker or a []*Lock; a MultiLock stands for its
// members. The error matches ErrInvalidArgument if there are none, one is nil or was made with invalid
// arguments, two of one Client have one name, or two RedLocks of one name share a node.
func NewMultiLock[L Locker](locks []L, opts ...MultiLockOption) (*MultiLock, error) {
	members := make([]Locker, len(locks))
	for i, l := range locks {
		members[i] = l
	}
	return newMultiLock(members, opts)
}

func newMultiLock(locks []Locker, opts []MultiLockOption) (*MultiLock, error) {
	cfg, err := lockOptions(multiConfig{roundTime: DefaultMultiLockRound}, opts, MultiLockOption.optionOfNewMultiLock)
	if err != nil {
		return nil, fmt.Errorf("rlock: NewMultiLock: %w", err)
	}
	m := &MultiLock{multiConfig: cfg}
	if m.roundTime < time.Millisecond || m.roundTime > MaxLease {
		return nil, fmt.Errorf("rlock: NewMultiLock: %w", invalid("WithRound(%v): must be between 1ms and %v", m.roundTime, MaxLease))
	}
	for i, l := range locks {
		if isNil(l) {
			return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: lock %d is nil", i))
		}
		other, nested := l.(*MultiLock)
		if !nested {
			m.members = append(m.members, l)
			continue
		}
		if err := other.check(context.Background()); err != nil {
			return nil, fmt.Errorf("rlock: NewMultiLock: lock %d: %w", i, err)
		}
		m.members = append(m.members, other.members...)
	}
	if len(m.members) == 0 {
		return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: no locks"))
	}
	apart := separate{map[any]Locker{}, map[quorum.VoteKey]bool{}}
	var names []string
	for _, l := range m.members {
		if err := apart.add(l); err != nil {
			return nil, err
		}
		names = append(names, l.Name())
	}
	m.name = strings.Join(names, " + ")
	slices.SortStableFunc(m.members, func(a, b Locker) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), slices.Compare(place(a), place(b)))
	})
	return m, nil
}

// separate has locks that do not exclude each other.
type separate struct {
	locks map[any]Locker          // by identity
	votes map[quorum.VoteKey]bool // votes that RedLocks use
}

// add adds a lock, or returns why it cannot be held together with the others.
func (s separate) add(l Locker) error {
	if own, ok := l.(hasCore); ok {
		if err := own.cored().check(context.Background()); err != nil {
			return fmt.Errorf("rlock: NewMultiLock: %w", err)
		}
	}
	id := identity(l)
	if !reflect.ValueOf(id).Comparable() {
		return nil // a type of the caller, whose keys are unknown
	}
	if other := s.locks[id]; other != nil && reflect.TypeOf(other) != reflect.TypeOf(l) {
		return fmt.Errorf("rlock: %w", invalid("NewMultiLock: a %T and a %T have the name %.100q, and exclude each other", other, l, l.Name()))
	} else if other != nil {
		return fmt.Errorf("rlock: %w", invalid("NewMultiLock: lock %.100q occurs twice", l.Name()))
	}
	s.locks[id] = l
	r, ok := l.(*RedLock)
	if !ok {
		return nil
	}
	for _, key := range r.proto.(*quorum.Lock).Votes() {
		if s.votes[key] {
			return fmt.Errorf("rlock: %w", invalid("NewMultiLock: two RedLocks %.100q share the node %v: each would need its only vote", l.Name(), key.Node))
		}
		s.votes[key] = true
	}
	return nil
}

type multiOption func(c *multiConfig)

func (o multiOption) optionOfNewMultiLock(c *multiConfig) { o(c) }

// WithRound sets how long a MultiLock that holds some of its members waits for the rest, before it gives
// them back and starts over: d for each member, from 1 ms to MaxLease. The default is 1.5 s, as in
// Redisson.
func WithRound(d time.Duration) MultiLockOption {
	return multiOption(func(c *multiConfig) { c.roundTime = d })
}

// place orders locks of one name: by their deployment, if it is known, and by the age of their Client, because a
// program makes its Clients in the same order in all of its processes.
func place(l Locker) []string {
	own, ok := l.(hasCore)
	if !ok {
		return nil
	}
	where, inner := "", own.cored()
	switch rdb := inner.c.wire.Redis().(type) {
	case *redis.Client:
		where = fmt.Sprint(rdb.Options().Addr, "/", rdb.Options().DB)
	case *redis.ClusterClient:
		where = fmt.Sprint(slices.Sorted(slices.Values(rdb.Options().Addrs)))
	}
	return []string{where, inner.family, fmt.Sprintf("%019d", inner.c.serial)}
}

// identity is equal for Lockers that are the same lock, or keep each other out.
func identity(l Locker) any {
	own, ok := l.(hasCore)
	if !ok {
		return l
	}
	id := own.cored().id()
	if protocol.Excludes(id.Family) {
		id.Family = protocol.HashFamily
	}
	return struct {
		c  *Client
		id protocol.LockID
	}{own.cored().c, id}
}

// Name is the names of the members in the given order.
func (m *MultiLock) Name() string {
	if m == nil {
		return ""
	}
	return m.name
}

func (m *MultiLock) check(ctx context.Context) error {
	switch {
	case m == nil || len(m.members) == 0:
		return &Error{Err: invalid("the MultiLock was not made by NewMultiLock")}
	case ctx == nil:
		return m.error(errNoContext)
	}
	return nil
}

// error returns the error of the MultiLock, which names the holder of a member.
func (m *MultiLock) error(err error) error {
	e := &Error{Lock: m.name, Err: err}
	var member *Error
	if errors.As(err, &member) {
		e.HolderID, e.Process, e.Left = member.HolderID, member.Process, member.Left
	}
	if err == error(member) {
		e.Err = ofMember{member}
	}
	return e
}

// ofMember wraps the error of a member in the error of the MultiLock.
type ofMember struct{ member *Error }

func (e ofMember) Error() string { return "member " + e.member.text() }
func (e ofMember) Unwrap() error { return e.member }

// Lock waits until it holds all members, and returns one lease of them. Errors are as from the members;
// after an error no member is held.
func (m *MultiLock) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return lockAll(ctx, m, true, opts)
}

// TryLock takes all members or none. Its errors are as from their TryLock.
func (m *MultiLock) TryLock(ctx context.Context, opts ...TryOption) (*Lease, error) {
	return lockAll(ctx, m, false, opts)
}

var (
	_ Inspector        = (*MultiLock)(nil)
	_ ReleaseRequester = (*MultiLock)(nil)
)

// membersAs returns the members as the interface that a method needs. If a member has a type of the caller that does not
// implement it, membersAs returns an error before any request is sent.
func membersAs[T any](ctx context.Context, m *MultiLock) ([]T, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	all := make([]T, len(m.members))
	for i, l := range m.members {
		var ok bool
		if all[i], ok = l.(T); !ok {
			return nil, m.error(invalid("the member %.100q is a %T, which is no %v", l.Name(), l, reflect.TypeFor[T]()))
		}
	}
	return all, nil
}

// each calls fn with each member, until it returns false or an error.
func (m *MultiLock) each(ctx context.Context, fn func(l Inspector) (bool, error)) error {
	members, err := membersAs[Inspector](ctx, m)
	if err != nil {
		return err
	}
	for _, l := range members {
		if more, err := fn(l); err != nil || !more {
			return err
		}
	}
	return nil
}

// IsLocked reports whether any member is held. It sends a request for one member after the other. If a
// member is no [Inspector], it fails with ErrInvalidArgument.
func (m *MultiLock) IsLocked(ctx context.Context) (locked bool, err error) {
	err = m.each(ctx, func(l Inspector) (bool, error) {
		locked, err = l.IsLocked(ctx)
		return !locked, err
	})
	return locked, err
}

// State returns the states of the members as one: their holders, longest TTL and number of waiters, and
// no token: see [Lease.Members].
func (m *MultiLock) State(ctx context.Context) (State, error) {
	all := State{Mode: ModeFree}
	err := m.each(ctx, func(l Inspector) (bool, error) {
		s, err := l.State(ctx)
		if s.Mode == ModeExclusive || all.Mode == ModeFree {
			all.Mode = s.Mode
		}
		all.Holders = append(all.Holders, s.Holders...)
		if s.TTL < 0 || all.TTL >= 0 && s.TTL > all.TTL {
			all.TTL = s.TTL
		}
		all.Waiters += s.Waiters
		return true, err
	})
	if err != nil {
		return State{Mode: ModeFree}, err
	}
	return all, nil
}

// HoldCount returns how often the owner of ctx has entered all members.
func (m *MultiLock) HoldCount(ctx context.Context) (times int, err error) {
	first := true
	err = m.each(ctx, func(l Inspector) (bool, error) {
		n, err := l.HoldCount(ctx)
		if first || n < times {
			times = n
		}
		first = false
		return times > 0, err
	})
	if err != nil {
		return 0, err
	}
	return times, nil
}

// ForceUnlock frees all members, no matter who holds them, and reports whether any was held. It goes on after
// an error, and joins the errors.
func (m *MultiLock) ForceUnlock(ctx context.Context) (bool, error) {
	return m.force(ctx, func(l Inspector) (bool, error) { return l.ForceUnlock(ctx) })
}

// ForceUnlockIf frees the member that the hold with this id has. If it was part of a hold of the whole,
// the whole is lost.
func (m *MultiLock) ForceUnlockIf(ctx context.Context, holdID string) (bool, error) {
	return m.force(ctx, func(l Inspector) (bool, error) { return l.ForceUnlockIf(ctx, holdID) })
}

// RequestRelease asks the holders of all members, as ForceUnlock does. If a member is no
// [ReleaseRequester], it fails with ErrInvalidArgument immediately.
func (m *MultiLock) RequestRelease(ctx context.Context) (asked bool, err error) {
	members, err := membersAs[ReleaseRequester](ctx, m)
	if err != nil {
		return false, err
	}
	var failed []error
	for _, l := range members {
		one, err := l.RequestRelease(ctx)
		asked = asked || one
		failed = append(failed, err)
	}
	return asked, errors.Join(failed...)
}

func (m *MultiLock) force(ctx context.Context, fn func(l Inspector) (bool, error)) (held bool, err error) {
	var failed []error
	err = m.each(ctx, func(l Inspector) (bool, error) {
		did, err := fn(l)
		held = held || did
		failed = append(failed, err)
		return true, nil
	})
	return held, errors.Join(append(failed, err)...)
}

// multiHold is the hold of a MultiLock: the leases of its members. It lasts as long as all of them do.
type multiHold struct {
	guard
	name     string
	members  []*Lease // in the order of the MultiLock
	lease    Lease
	hasEnded atomic.Bool // the hold has ended, so the end of a member has no effect
}

func newMultiHold(name string, members []*Lease) *Lease {
	g := &multiHold{name: name, members: members}
	g.lease.multi = g
	c := g.lease.client()
	for _, l := range members {
		l.onEnd(func(cause error) {
			if g.hasEnded.Load() {
				return
			}
			// In a separate goroutine, because the caller that ends a member may have locked
			// the guard of the group.
			end := c.env.Begin() // a test that moves the clock waits for this
			c.wire.Go(func() {
				defer end()
				g.lock()
				g.endLocked(cause)
				g.unlock()
			})
		})
	}
	return &g.lease
}

// token returns the highest token of the members. It grows from hold to hold of the same members, like each member's
// token.
func (g *multiHold) token() (token int64) {
	for _, l := range g.members {
		token = max(token, l.Token())
	}
	return token
}

func (g *multiHold) deadline() time.Time {
	end := g.members[0].Deadline()
	for _, l := range g.members[1:] {
		if d := l.Deadline(); d.Before(end) {
			end = d
		}
	}
	return end
}

func (g *multiHold) checkLocked() {
	for _, l := range g.members {
		if err := l.Err(); err != nil {
			g.endLocked(err)
		}
	}
}

// endLocked ends the lease because a member has ended. The other members are useless alone, and are given back. But
// if the client of the member shuts down, the member is still held, and all members are kept until the holder unlocks.
func (g *multiHold) endLocked(cause error) {
	if g.hasEnded.Load() {
		return
	}
	g.lease.endLocked(cause)
	if onlyClosed(cause) {
		return
	}
	g.hasEnded.Store(true)
	giveBack(context.Background(), g.members)
}

// listen listens for requests to release. A request to release one member is a request to release all.
func (g *multiHold) listen() {
	for _, m := range g.members {
		m.listenForRequest(func() {
			g.lock()
			g.lease.notifyRequestLocked()
			g.unlock()
		})
	}
}

func (g *multiHold) extend(ctx context.Context, d time.Duration) error {
	err := each(g.members, func(l *Lease) error { return l.Extend(ctx, d) })
	if err != nil {
		// A lost member ends the whole, and with it the other members, whose errors may
		// say that they were unlocked.
		if why := g.lease.Err(); why != nil {
			return why
		}
	}
	return err
}

// release ends the members after the first Unlock.
func (g *multiHold) release(ctx context.Context) error {
	g.lock()
	g.checkLocked()
	if err := g.lease.err; err != nil && !onlyClosed(err) {
		g.unlock()
		return err
	}
	g.lease.endLocked(ErrUnlocked)
	g.hasEnded.Store(true)
	g.unlock()
	return unlockAll(ctx, g.members)
}

// each calls a function with each lease in parallel, and joins the errors.
func each(leases []*Lease, do func(*Lease) error) error {
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for i, l := range leases[min(1, len(leases)):] {
		wg.Go(func() { errs[i+1] = do(l) })
	}
	if len(leases) > 0 {
		errs[0] = do(leases[0])
	}
	wg.Wait()
	return errors.Join(errs...)
}

// grace returns the longest grace of the members.
func (m *MultiLock) grace() (grace time.Duration) {
	for _, l := range m.members {
		if l, ok := l.(hasCore); ok {
			grace = max(grace, l.cored().grace())
		}
	}
	return grace
}
