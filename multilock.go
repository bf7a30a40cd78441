package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
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

const (
	// multiTries is how often, after a round has ended, a MultiLock tries to
	// have all members at once before it keeps some again while it waits.
	multiTries = 10

	// multiRestarts is how often it begins again because a member was lost
	// before all were held. More often than by accident, the lease is too short.
	multiRestarts = 5
)

// MultiLock is several locks as one, all or nothing: the counterpart of
// Redisson's RMultiLock. Its members may be of any types and on any deployments.
// It needs all of them: for a majority of independent masters there is RedLock.
//
// Members are taken one after the other, in the order of their names and, where
// those are equal, of the addresses of their servers, so that MultiLocks with
// members in common do not wait for each other in a circle. (That order is the
// same in all processes if they use the same addresses. Sentinel deployments have
// none: those are taken in the order in which their Clients were made.) If all members are of type Lock, on one Client and in one cluster
// slot, one atomic script takes all or none, in one round trip; only when one
// of them is held, the rest is done step by step. One script frees such members too.
//
// A peer that takes the members in another order may hold one that this one
// waits for, and wait for one that this one holds. So what is held is given back
// after a round, see [DefaultMultiLockRound]; the missing member is then waited
// for without holding any.
//
// The locks of one name that two Clients make on one deployment are one lock: a
// MultiLock of both would wait for itself.
//
// Like a Lock it is a name, not a hold, and may be shared by goroutines. An
// Observer is told of its members, not of the whole.
type MultiLock struct {
	name    string
	members []Locker // in the order in which they are taken
}

var _ Locker = (*MultiLock)(nil)

// NewMultiLock returns the lock of all the given locks. It fails with an error that
// matches ErrInvalidArgument if there are none, one is nil or was made of
// arguments that are not valid, the same lock of one Client occurs twice (both
// sides of a read-write lock are the same lock), or two RedLocks of one name share a
// node. A MultiLock among them counts as its members.
func NewMultiLock(locks ...Locker) (*MultiLock, error) {
	m := &MultiLock{}
	for i, l := range locks {
		if isNil(l) {
			return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: lock %d is nil", i))
		}
		switch l := l.(type) {
		case *MultiLock:
			if err := l.check(context.Background()); err != nil {
				return nil, fmt.Errorf("rlock: NewMultiLock: lock %d: %w", i, err)
			}
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
	taken := map[redKey]bool{} // by the RedLocks
	for _, l := range m.members {
		if l, ok := l.(interface{ check(context.Context) error }); ok {
			if err := l.check(context.Background()); err != nil {
				return nil, fmt.Errorf("rlock: NewMultiLock: %w", err)
			}
		}
		names = append(names, l.Name())
		id := identity(l)
		if !reflect.ValueOf(id).Comparable() {
			continue // a type of the caller's, of which nothing is known
		}
		if seen[id] {
			return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: lock %.100q occurs twice", l.Name()))
		}
		seen[id] = true
		if r, ok := l.(*RedLock); ok {
			for _, key := range r.protocol.(*red).votesAt() {
				if taken[key] {
					return nil, fmt.Errorf("rlock: %w", invalid("NewMultiLock: two RedLocks %.100q share the node %s: each of them would keep its vote from the other", l.Name(), key.node))
				}
				taken[key] = true
			}
		}
	}
	m.name = strings.Join(names, " + ")
	slices.SortStableFunc(m.members, func(a, b Locker) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), slices.Compare(place(a), place(b)))
	})
	return m, nil
}

// place is what orders locks of one name: which deployment they are on, as far
// as that can be told, and which Client's they are, by age: a program makes its
// Clients in the same order in all of its processes.
func place(l Locker) []string {
	if l, ok := l.(interface{ place() []string }); ok {
		return l.place()
	}
	return nil
}

func (l *core) place() []string {
	where := ""
	switch rdb := l.c.rdb.(type) {
	case *redis.Client:
		where = fmt.Sprint(rdb.Options().Addr, "/", rdb.Options().DB)
	case *redis.ClusterClient:
		where = fmt.Sprint(slices.Sorted(slices.Values(rdb.Options().Addrs)))
	}
	return []string{where, l.id.family, fmt.Sprintf("%019d", l.c.serial)}
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

// error is the error of the whole; the holder that is named is that of a member.
func (m *MultiLock) error(err error) error {
	e := &Error{Lock: m.name, Err: err}
	var member *Error
	if errors.As(err, &member) {
		e.Holder, e.Left = member.Holder, member.Left
	}
	return e
}

// Lock waits until it holds all members, and returns one lease of them. It fails
// with the errors of the members' Lock; whatever the error, what was taken is
// given back, in the background if Redis does not answer at once.
//
// With WithLease each member has at least that lease from the moment in which
// all are held.
func (m *MultiLock) Lock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return m.lock(ctx, true, opts)
}

// TryLock takes all members if each is free, or ctx descends from its hold; else
// none. It fails with the errors of the members' TryLock.
func (m *MultiLock) TryLock(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	return m.lock(ctx, false, opts)
}

// round is one try after the other to take all members.
type round struct {
	m     *MultiLock
	opts  []AcquireOption // for the members
	given acquireConfig
	end   time.Time // when the wait is over; zero: never
	outer *chain    // of the caller's context

	leases []*Lease // of the members taken so far
	chain  *chain   // outer and their holds: no member waits for another
	// blocked is the member that could not be had while others were kept, or -1.
	// It is waited for first then, and the others are only tried, so often.
	blocked, tries int
	restarts       int                     // after a member was lost
	keepers        sync.WaitGroup          // see add
	closed         context.CancelCauseFunc // ends the waiting
}

// errAgain: what is held is to be given back, and all to begin again.
var errAgain = errors.New("not all members were to be had at once")

func (m *MultiLock) lock(ctx context.Context, wait bool, opts []AcquireOption) (*Lease, error) {
	if err := m.check(ctx); err != nil {
		return nil, err
	}
	var given acquireConfig
	if err := apply(opts, &given); err != nil {
		return nil, m.error(err)
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
	r := round{m: m, given: given, blocked: -1}
	if given.hasWait {
		r.end = time.Now().Add(given.wait)
		wait = given.wait > 0
	}
	r.opts = append(slices.Clone(opts), func(a *acquireConfig) { a.hasWait = false })
	if !wait {
		r.end = time.Time{} // one look, which takes what it takes
	}
	r.outer = chainFrom(ctx)
	r.chain = r.outer
	for {
		err := r.take(ctx, wait)
		if err == nil {
			return newGroup(m.name, r.leases), nil
		}
		r.undo(ctx)
		if !errors.Is(err, errAgain) {
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
	if r.blocked < 0 {
		done, err := r.together(ctx, wait)
		if wait && err != nil && worthRepeating(err) && !errors.Is(err, ErrNotAcquired) {
			r.undo(ctx)
			err = nil // the members' Lock bears that for longer
		}
		if done || err != nil {
			return err
		}
	}
	// If the client of a member that is held shuts down while another member is
	// waited for, the waiting ends: the Shutdown waits for what is held.
	caller := ctx
	ctx, r.closed = context.WithCancelCause(ctx)
	defer r.closed(nil)
	kept, cancel := context.WithCancel(ctx)
	stop := func() {
		cancel()
		r.keepers.Wait()
	}
	defer stop()
	var err error
	if r.blocked < 0 {
		err = r.inOrder(ctx, kept, wait)
	} else {
		err = r.around(ctx, kept)
	}
	if err != nil && caller.Err() == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	stop()
	if err := r.complete(ctx, wait); err != nil {
		return err
	}
	if first := r.blocked; first > 0 { // it was taken first
		r.leases = slices.Insert(slices.Clone(r.leases[1:]), first, r.leases[0])
	}
	return nil
}

// inOrder takes one member after the other, and keeps them while it waits for the
// next, until the round is over.
func (r *round) inOrder(ctx, kept context.Context, wait bool) error {
	var limit time.Time // of this round, once something is held
	for i, l := range r.m.members {
		if !wait {
			lease, err := l.TryLock(r.chain.in(ctx), r.opts...)
			if err != nil {
				return err
			}
			r.add(kept, lease)
			continue
		}
		lease, err := l.Lock(r.chain.in(ctx), r.until(earlier(r.end, limit))...)
		if err != nil {
			now := time.Now()
			if ctx.Err() == nil && errors.Is(err, ErrNotAcquired) &&
				!limit.IsZero() && !now.Before(limit) && (r.end.IsZero() || now.Before(r.end)) {
				r.blocked, r.tries = i, multiTries
				return errAgain
			}
			return err
		}
		r.add(kept, lease)
		if limit.IsZero() {
			limit = time.Now().Add(DefaultMultiLockRound * time.Duration(len(r.m.members)))
		}
	}
	return nil
}

// around waits for the member that was not to be had, with empty hands, and then
// takes the rest if it is free. To wait for that too would be to keep this one
// from a peer who has the order that this is.
func (r *round) around(ctx, kept context.Context) error {
	first := r.blocked
	lease, err := r.m.members[first].Lock(ctx, r.until(r.end)...)
	if err != nil {
		return err
	}
	r.add(kept, lease)
	for i, l := range r.m.members {
		if i == first {
			continue
		}
		lease, err := l.TryLock(r.chain.in(ctx), r.opts...)
		if err != nil {
			if ctx.Err() != nil || !errors.Is(err, ErrNotAcquired) && !worthRepeating(err) {
				return err
			}
			r.blocked = i
			if r.tries--; r.tries == 0 {
				r.blocked = -1
			}
			return errAgain
		}
		r.add(kept, lease)
	}
	return nil
}

// until is the options of a member's Lock that ends at a time, if there is one.
func (r *round) until(end time.Time) []AcquireOption {
	if end.IsZero() {
		return r.opts
	}
	return append(slices.Clone(r.opts), WithWait(max(time.Until(end), 0)))
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// add notes that a member is held, and keeps it until all are. A lease that is
// renewed needs no help; a fixed one is extended, each by itself, so that a
// server that hangs costs no other member.
func (r *round) add(kept context.Context, l *Lease) {
	r.leases = append(r.leases, l)
	r.chain = l.of.chain(r.chain)
	closed := r.closed
	forget := l.onEnd(func(cause error) {
		if onlyClosed(cause) {
			closed(cause)
		}
	})
	context.AfterFunc(kept, forget)
	if !r.given.hasLease {
		return
	}
	r.keepers.Go(func() {
		tick := time.NewTicker(r.given.lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-kept.Done():
				return
			case <-tick.C:
				_ = l.Extend(kept, r.given.lease) // a loss shows at the end
			}
		}
	})
}

// complete sees to it that all members are held, and for as long as was asked.
func (r *round) complete(ctx context.Context, wait bool) error {
	asked, cancel := r.bound(ctx)
	defer cancel()
	newest := r.leases[len(r.leases)-1]
	err := each(r.leases, func(l *Lease) error {
		if r.given.hasLease && l != newest {
			return l.Extend(asked, r.given.lease)
		}
		return l.Err()
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx)
	case asked.Err() != nil:
		return fmt.Errorf("%w: timed out after %v", ErrNotAcquired, r.given.wait)
	case !errors.Is(err, ErrLeaseLost) && !worthRepeating(err):
		return err
	case wait && r.restarts < multiRestarts:
		// A member was lost that the caller did not have before: nothing was
		// promised yet. (If the caller had it, the next round says so.)
		r.restarts++
		return errAgain
	}
	return because(ErrNotAcquired, err)
}

// bound is the context of what must not take longer than the wait.
func (r *round) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.end.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, r.end)
}

// undo gives back what was taken. It waits for that, but not for long: what takes
// longer goes on in the background.
func (r *round) undo(ctx context.Context) {
	if len(r.leases) == 0 {
		return
	}
	var wg sync.WaitGroup
	for _, l := range r.leases {
		wg.Add(1)
		l.giveBack(ctx, wg.Done)
	}
	r.leases, r.chain = nil, r.outer
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	grace := time.NewTimer(giveUpGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// giveBack unlocks in the background, where Shutdown waits for it. What fails is
// repeated by the watchdog.
func (l *Lease) giveBack(ctx context.Context, done func()) {
	c := l.of.client()
	c.calls.add(1)
	c.background(func() {
		defer c.end()
		defer done()
		_ = l.Unlock(ctx)
	})
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
// client and slot of which the caller holds none, and nobody is in line before
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
	opts, err := cores[0].options(r.opts, wait) // they are of one type and Client
	if err != nil {
		return false, err
	}
	var attempts []*attempt
	stay, number := c.newStay()
	for _, l := range cores {
		a := &attempt{core: l, opts: opts, stay: stay, number: number, tries: 1}
		if own := r.outer.own(); own != nil {
			a.owned = own.at(l)
			defer a.owned.leave()
			if !a.owned.turn.tryTake() {
				return false, nil
			}
			defer a.owned.turn.give()
		}
		if r.outer.held(l, exclusive) != nil || wait && c.queues.waiting(l.line(stay)) > 0 {
			return false, nil
		}
		attempts = append(attempts, a)
	}
	ctxs := make([]context.Context, len(cores))
	start := c.clock.Now()
	for i, l := range cores {
		ctx = c.cfg.observer.AcquireStart(ctx, l.name)
		ctxs[i] = ctx
	}
	done, err = r.all(ctx, attempts, wait)
	told := err
	if err == nil && !done {
		told = fmt.Errorf("%w: one of the locks is %s", ErrNotAcquired, attempts[0].seen.text(c.clock.Now()))
	}
	for i, a := range attempts {
		e := AcquireEvent{Lock: a.core.name, Wait: c.clock.Now().Sub(start), Attempts: 1, Err: told}
		if done {
			e.Owner, e.Token = r.leases[i].Owner(), r.leases[i].Token()
		}
		c.cfg.observer.AcquireEnd(ctxs[i], e)
	}
	if wait {
		return done, err // one of them is held: it is waited for step by step
	}
	return done, told
}

// all is the one request of together, and what follows.
func (r *round) all(ctx context.Context, attempts []*attempt, wait bool) (done bool, err error) {
	first := attempts[0]
	c, stay := first.core.c, first.stay
	asked, cancel := r.bound(ctx)
	defer cancel()
	first.looks()
	if err := c.ready(asked); err != nil {
		first.see(&request{}, answer{err: err}, 0)
		first.seen.settle(c.clock.Now(), false)
		return false, first.interrupted(ctx, err)
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
	ans := c.call(asked, c.cfg.commandTimeout+req.within, req)
	reply, err := ans.pair()
	first.see(req, ans, reply[0])
	if ans.err != nil {
		first.seen.settle(c.clock.Now(), false)
		err = first.interrupted(ctx, ans.err)
	}
	var refused redis.Error
	granted := err == nil && reply[0] == 1 || errors.As(ans.err, &refused) && !neverRan(ans.err)
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
		wg.Go(func() { a.giveUp() })
	}
	wg.Wait()
	return false, err
}
