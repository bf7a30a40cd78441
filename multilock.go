package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultMultiLockRound is for how long, for each of its members, a MultiLock
// that holds some of them waits for the rest before it gives back what it has
// and begins again. The figure is Redisson's. It ends the deadlock of groups that
// do not take their members in the same order, as Java processes may.
const DefaultMultiLockRound = 1500 * time.Millisecond

// MultiLock is several locks as one, all or nothing: the counterpart of
// Redisson's RMultiLock. Its members may be of any types and on any deployments.
// It needs all of them: for a majority of independent masters there is RedLock.
//
// Members are taken one after the other in the order of their names, so that
// MultiLocks with members in common do not wait for each other in a circle.
// (Members of the same name, on several deployments, are taken in the order
// given.) If all members are of type Lock, on one Client and in one cluster
// slot, one atomic script takes all or none, in one round trip; only when one
// of them is held, the rest is done step by step.
//
// Like a Lock it is a name, not a hold, and may be shared by goroutines.
type MultiLock struct {
	name    string
	members []Locker // in the order in which they are taken
}

var _ Locker = (*MultiLock)(nil)

// NewMultiLock returns the lock of all the given locks. It fails with an error that
// matches ErrInvalidArgument if there are none, one is nil, or the same lock
// occurs twice (both sides of a read-write lock are the same lock). A MultiLock
// among them counts as its members.
func NewMultiLock(locks ...Locker) (*MultiLock, error) {
	m := &MultiLock{}
	for i, l := range locks {
		switch l := l.(type) {
		case nil:
			return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: lock %d is nil", i))
		case *MultiLock:
			m.members = append(m.members, l.members...)
		default:
			m.members = append(m.members, l)
		}
	}
	if len(m.members) == 0 {
		return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: no locks"))
	}
	var names []string
	seen := map[any]bool{}
	for _, l := range m.members {
		names = append(names, l.Name())
		id := identity(l)
		if seen[id] {
			return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: lock %.100q occurs twice", l.Name()))
		}
		seen[id] = true
	}
	m.name = strings.Join(names, " + ")
	slices.SortStableFunc(m.members, func(a, b Locker) int { return cmp.Compare(a.Name(), b.Name()) })
	return m, nil
}

// identity is equal for Lockers that are the same lock.
func identity(l Locker) any {
	if l, ok := l.(interface{ identity() any }); ok {
		return l.identity()
	}
	return l
}

func (l *core) identity() any {
	return struct {
		c  *Client
		id lockID
	}{l.c, l.id}
}

// Name is the names of the members, in the order given.
func (m *MultiLock) Name() string { return m.name }

func (m *MultiLock) error(err error) error { return &Error{Lock: m.name, Err: err} }

// Lock waits until it holds all members, and returns one lease of them. It fails
// with the errors of the members' Lock; whatever the error, no member is left
// held.
//
// With WithLease each member has at least that lease from the moment in which
// all are held.
func (m *MultiLock) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return m.lock(ctx, true, opts)
}

// TryLock takes all members if each is free, or held by the owner in ctx; else
// none. It fails with the errors of the members' TryLock.
func (m *MultiLock) TryLock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return m.lock(ctx, false, opts)
}

// round is one try to take all members.
type round struct {
	m     *MultiLock
	opts  []AcquireOption // for the members
	given acquireConfig
	end   time.Time // when the wait is over; zero: never
	own   *owner

	mu     sync.Mutex // guards the rest
	leases []*Lease   // of the members taken so far
}

var errRoundOver = errors.New("a member was held for too long while others were kept")

func (m *MultiLock) lock(ctx context.Context, wait bool, opts []AcquireOption) (*Lease, error) {
	var given acquireConfig
	for _, opt := range opts {
		opt(&given)
	}
	switch {
	case given.hasWait && !wait:
		return nil, m.error(errTryWait)
	case given.wait < 0:
		return nil, m.error(invalid("WithWait(%v): negative", given.wait))
	case given.hasLease:
		if err := checkLease("WithLease", given.lease); err != nil {
			return nil, m.error(err)
		}
	}
	r := round{m: m, given: given}
	if given.hasWait {
		r.end = time.Now().Add(given.wait)
		wait = given.wait > 0
	}
	r.opts = append(slices.Clone(opts), func(a *acquireConfig) { a.hasWait = false })
	if r.own = ownerFrom(ctx); r.own == nil {
		ctx = WithOwner(ctx) // one owner of all members, whom the lease hands on
		r.own = ownerFrom(ctx)
	}
	for {
		err := r.take(ctx, wait)
		if err == nil {
			return newGroup(m.name, r.own, r.leases), nil
		}
		r.undo(ctx)
		if !errors.Is(err, errRoundOver) {
			return nil, m.error(err)
		}
		// Those who had what this one wanted, and want what it had, may have
		// given up in the same moment: they do not begin again in the same.
		if err := r.pause(ctx); err != nil {
			return nil, m.error(err)
		}
	}
}

// take takes all members, or leaves in r.leases what has to be undone.
func (r *round) take(ctx context.Context, wait bool) error {
	if done, err := r.together(ctx, wait); done || err != nil {
		return err
	}
	stop := r.keep(ctx)
	defer stop()
	var limit time.Time // of this round, once something is held
	for _, l := range r.m.members {
		acquire, opts := l.TryLock, r.opts
		if wait {
			acquire = l.Lock
			if end := earlier(r.end, limit); !end.IsZero() {
				opts = append(slices.Clone(opts), WithWait(max(time.Until(end), 0)))
			}
		}
		lease, err := acquire(ctx, opts...)
		if err != nil {
			now := time.Now()
			if ctx.Err() == nil && errors.Is(err, ErrNotAcquired) &&
				!limit.IsZero() && !now.Before(limit) && (r.end.IsZero() || now.Before(r.end)) {
				return fmt.Errorf("%w: %w", errRoundOver, err)
			}
			return err
		}
		r.mu.Lock()
		r.leases = append(r.leases, lease)
		r.mu.Unlock()
		if wait && limit.IsZero() {
			limit = time.Now().Add(DefaultMultiLockRound * time.Duration(len(r.m.members)))
		}
	}
	stop()
	return r.complete(ctx)
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// keep keeps the members taken so far, whose leases are fixed, until all are.
// Renewed ones need no help.
func (r *round) keep(ctx context.Context) (stop func()) {
	if !r.given.hasLease || len(r.m.members) == 1 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(r.given.lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			r.mu.Lock()
			taken := slices.Clone(r.leases)
			r.mu.Unlock()
			_ = each(taken, func(l *Lease) error { return l.Extend(ctx, r.given.lease) }) // a loss shows at the end
		}
	}()
	return sync.OnceFunc(func() { cancel(); <-ended })
}

// complete sees to it that all members are held, and for as long as was asked.
func (r *round) complete(ctx context.Context) error {
	return each(r.leases, func(l *Lease) error {
		if r.given.hasLease && l != r.leases[len(r.leases)-1] {
			return l.Extend(ctx, r.given.lease)
		}
		return l.Err()
	})
}

// undo gives back what was taken, the last first.
func (r *round) undo(ctx context.Context) {
	leases := r.leases
	r.leases = nil
	_ = each(leases, func(l *Lease) error { return l.Unlock(ctx) }) // what fails goes on in the background
}

// pause puts a random time between two rounds.
func (r *round) pause(ctx context.Context) error {
	t := time.NewTimer(rand.N(20 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// each does something with all leases at once, and joins the errors.
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

// together takes all members by one script, if they are plain locks of one
// client and slot whose owner holds none of them, and nobody is in line before
// it. It reports whether it has; if not, and there is no error, nothing is held
// and the members have to be taken one by one.
func (r *round) together(ctx context.Context, wait bool) (done bool, err error) {
	var cores []*core
	for _, l := range r.m.members {
		l, ok := l.(*Lock)
		if !ok || l.bad != nil || len(cores) > 0 && (l.c != cores[0].c || l.keys.clock != cores[0].keys.clock) {
			return false, nil
		}
		cores = append(cores, l.core)
	}
	c := cores[0].c
	if len(cores) == 1 || !c.begin() {
		return false, nil
	}
	defer c.end()
	opts, err := c.cfg.acquireOptions(r.opts, wait)
	if err != nil {
		return false, err
	}
	var attempts []*attempt
	stay, number := c.newStay()
	for _, l := range cores {
		s := r.own.seat(c, l.id)
		defer s.leave()
		if !s.tryTake() {
			return false, nil
		}
		defer s.give()
		if s.held(exclusive) != nil || wait && c.queues.waiting(l.line(stay)) > 0 {
			return false, nil
		}
		attempts = append(attempts, &attempt{core: l, seat: s, opts: opts, stay: stay, number: number, tries: 1})
	}
	ctxs := make([]context.Context, len(cores))
	start := c.clock.Now()
	for i, l := range cores {
		ctx = c.cfg.observer.AcquireStart(ctx, l.name)
		ctxs[i] = ctx
	}
	done, err = r.all(ctx, attempts, wait)
	if err == nil && !done && !wait {
		err = because(ErrNotAcquired, errOneHeld)
	}
	for i, a := range attempts {
		e := AcquireEvent{Lock: a.core.name, Wait: c.clock.Now().Sub(start), Attempts: 1, Err: err}
		if done {
			e.Owner, e.Token = r.leases[i].Owner(), r.leases[i].Token()
		}
		c.cfg.observer.AcquireEnd(ctxs[i], e)
	}
	return done, err
}

var errOneHeld = errors.New("one of the locks is held by another")

// all is the one request of together, and what follows.
func (r *round) all(ctx context.Context, attempts []*attempt, wait bool) (done bool, err error) {
	first := attempts[0]
	c, stay := first.core.c, first.stay
	if err := c.ready(ctx); err != nil {
		return false, err
	}
	req := first.core.acked(&request{
		script: first.core.script("acquire_all"),
		keys:   []string{first.core.keys.clock},
		args:   []any{stay, first.opts.lease.Milliseconds()},
	})
	for _, a := range attempts {
		req.keys = append(req.keys, a.core.keys.lock, a.core.keys.tombstone(stay))
	}
	req = c.served(req)
	sent := c.clock.Now()
	ans := c.call(ctx, c.cfg.commandTimeout+req.within, req)
	reply, err := ans.ints()
	if ans.err != nil {
		err = first.core.interrupted(ctx, ans.err)
	}
	var refused redis.Error
	granted := err == nil && reply[0] == 1 || errors.As(ans.err, &refused)
	for _, a := range attempts {
		a.unsure, a.granted = ans.unsure, granted
	}
	if err == nil && reply[0] == 1 {
		for _, a := range attempts {
			var lease *Lease
			if lease, err = a.accept(sent, req, ans, reply[1]); err != nil {
				break
			}
			r.leases = append(r.leases, lease)
		}
		if err == nil {
			return true, nil
		}
	}
	var wg sync.WaitGroup
	if err == nil && !wait && reply[0] == -3 {
		err = because(ErrNotAcquired, quarantined{time.Duration(reply[1]) * time.Millisecond})
	}
	for _, a := range attempts[len(r.leases):] {
		wg.Go(a.giveUp)
	}
	wg.Wait()
	return false, err
}
