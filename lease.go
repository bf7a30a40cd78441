package rlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Lease is one entry into a lock, returned by Lock and TryLock. It lasts until it is
// unlocked, lost, or its Client is shut down ([Client.Shutdown]). Any goroutine may use
// it. A nil or zero Lease has ended: its errors match ErrNotHeld.
//
// Its deadline is counted on the monotonic clock of this process from before the request
// was sent, less the drift, so a Lease never outlives what Redis promised. If the
// deadline passes without a renewal, the lease is lost, whether Redis can be reached or
// not. It cannot promise that code stops when the lease is lost (watch Done or Context,
// and hand the Token to whatever can check it), nor that a process which was stopped
// between a check and its effect notices in time.
type Lease struct {
	of      holding
	since   instant
	renewed bool // at a hold: it is to be renewed

	// For an Observer. The first Unlock alone uses the last two.
	entry      int32 // how many leases the hold had with this one
	ends       bool  // its Unlock ends the hold
	handedOver bool  // and hands it over

	// Guarded by the guard of what it is of.
	unlocked  bool       // Unlock was called
	err       error      // why it ended; nil while it lasts
	listeners *listeners // nil: there were none
	next      *Lease     // at a hold: another open lease
}

// listeners are told of the end of a lease.
type listeners struct {
	done     chan struct{}              // closed at the end; nil: nobody waits so
	contexts map[*leaseContext]struct{} // to be canceled at the end
	wanted   *wanted                    // nil: nobody listens for requests to release
}

type leaseContext struct{ cancel context.CancelCauseFunc }

// holding is what a lease belongs to: a hold of a lock, or of several at once. Methods
// whose name ends in Locked are called with its guard locked.
type holding interface {
	// lock and unlock are those of its guard.
	lock()
	unlock()
	cancelLocked(fn context.CancelCauseFunc, why error)
	client() *Client
	lockName() string
	holdID() string
	fence() int64
	// chain adds its holds to those that a context descends from.
	chain(up *chain) *chain
	// memberLeases are those of a MultiLock's members; nil: it is of one lock.
	memberLeases() []*Lease
	deadlineLocked() time.Time
	// checkLocked ends the leases if their time is over.
	checkLocked(now instant)
	// listen begins to listen for requests to release, on behalf of a lease: see Lease.askedFor.
	listen(l *Lease)
	extend(ctx context.Context, l *Lease, d time.Duration) error
	// release ends a lease for which Unlock was called at the given time.
	release(ctx context.Context, l *Lease, called instant) error
	// tellUnlocked tells the Observer of the result of that, if there is one.
	tellUnlocked(l *Lease, err error)
}

// guard is a mutex that guards leases. Contexts are canceled after its
// critical sections: that may run code of the user's, which may look at the
// lease.
type guard struct {
	mu     sync.Mutex // guards the rest, and what says so
	ending *ending    // contexts of leases that have ended
}

// ending is a context that is to be canceled.
type ending struct {
	cancel context.CancelCauseFunc
	why    error
	next   *ending
}

func (g *guard) lock() { g.mu.Lock() }

func (g *guard) unlock() {
	ending := g.ending
	g.ending = nil
	g.mu.Unlock()
	for ; ending != nil; ending = ending.next {
		ending.cancel(ending.why)
	}
}

// cancelLocked has a context canceled after the critical section.
func (g *guard) cancelLocked(fn context.CancelCauseFunc, why error) {
	g.ending = &ending{fn, why, g.ending}
}

var errNoLease = &Error{Err: ErrNotHeld}

// longOver is the Done of a nil or zero lease.
var longOver = func() chan struct{} {
	over := make(chan struct{})
	close(over)
	return over
}()

// none reports whether the lease is nil or zero.
func (l *Lease) none() bool { return l == nil || l.of == nil }

// Name is the name of the lock, with the client's prefix.
func (l *Lease) Name() string {
	if l.none() {
		return ""
	}
	return l.of.lockName()
}

// HoldID is the id of the hold in Redis, also to Java clients: "<client uuid>:<number>".
// A re-entry has the id of its hold, and so has a hold that was handed over ([WithHandOver]).
func (l *Lease) HoldID() string {
	if l.none() {
		return ""
	}
	return l.of.holdID()
}

// Token is the fencing token: greater than that of every earlier hold of this lock, and
// the same for each re-entry. A resource that refuses tokens lower than the highest it
// has seen is safe from holders that continue after a loss. Tokens grow across expiry,
// restarts and failovers, unless the server loses its data and its clock goes back, both
// at once; those of a [RedLock] without a quarantine also unless several of its servers
// come back with old data. A [FencedLock] promises less. [LeaseFrom] has the lease where only its
// context was handed on.
func (l *Lease) Token() int64 {
	if l.none() {
		return 0
	}
	return l.of.fence()
}

// Members are the leases of the members of a MultiLock, in the order of their names;
// other locks have none. Each has the fencing token of its own lock, for a resource that
// others guard by that lock. To unlock one ends the whole.
func (l *Lease) Members() []*Lease {
	if l.none() {
		return nil
	}
	return slices.Clone(l.of.memberLeases())
}

// Deadline is the current end of the lease's validity. Renewals move it, up to the end of
// WithMaxHold.
func (l *Lease) Deadline() time.Time {
	if l.none() {
		return time.Time{}
	}
	l.of.lock()
	defer l.of.unlock()
	return l.of.deadlineLocked()
}

// Err is nil while the lease lasts. Afterwards it matches ErrUnlocked, ErrClosed, or
// ErrLeaseLost and the cause of the loss. A lease that ended with ErrClosed is still
// held until it is unlocked; if it is lost before, Err matches ErrLeaseLost too from
// then on.
func (l *Lease) Err() error {
	if l.none() {
		return errNoLease
	}
	l.of.lock()
	defer l.of.unlock()
	l.of.checkLocked(l.of.client().now())
	if l.err == nil {
		return nil
	}
	return l.error(l.err)
}

func (l *Lease) error(err error) error {
	return &Error{Lock: l.Name(), HoldID: l.HoldID(), Err: err}
}

// Done is closed when the lease ends: when Unlock is called, before anybody else can
// have the lock; when it is lost; or when the client begins to shut down, which only
// asks the holder to unlock.
func (l *Lease) Done() <-chan struct{} {
	if l.none() {
		return longOver
	}
	l.of.lock()
	defer l.of.unlock()
	if l.err != nil && (l.listeners == nil || l.listeners.done == nil) {
		return longOver
	}
	on := l.listenersLocked()
	if on.done == nil {
		on.done = make(chan struct{})
	}
	return on.done
}

func (l *Lease) listenersLocked() *listeners {
	if l.listeners == nil {
		l.listeners = &listeners{}
	}
	return l.listeners
}

// Context returns a context that descends from the lease: calls with it may enter again
// this lock and the other locks that parent descends from, and no others. So goroutines
// that share the context exclude each other from every other lock, but not from this
// one. It is canceled when the lease ends; context.Cause then says why. [LeaseFrom] returns
// the lease.
//
// Everything else comes from parent: its values, its end, and its owner, if it has one
// from WithOwner. What the context of the acquire descended from counts only if parent
// descends from it too. Ending parent does not end the lease. The lease remembers the
// context until one of them ends: for many calls on a long lease, give each a parent
// that ends.
func (l *Lease) Context(parent context.Context) context.Context {
	if parent == nil {
		parent = context.Background()
	}
	if l.none() {
		ctx, cancel := context.WithCancelCause(chainFrom(parent).in(parent, nil))
		cancel(errNoLease)
		return ctx
	}
	ctx, cancel := context.WithCancelCause(l.of.chain(chainFrom(parent)).in(parent, l))
	forget := l.onEnd(cancel)
	context.AfterFunc(ctx, forget) // if parent ends first
	return ctx
}

// onEnd has a function called with the cause when the lease ends, at once if it has ended.
// The function must not lock a mutex whose owner may look at the lease.
func (l *Lease) onEnd(fn context.CancelCauseFunc) (forget func()) {
	l.of.lock()
	defer l.of.unlock()
	l.of.checkLocked(l.of.client().now())
	if l.err != nil {
		l.of.cancelLocked(fn, l.error(l.err))
		return func() {}
	}
	lc := &leaseContext{fn}
	on := l.listenersLocked()
	if on.contexts == nil {
		on.contexts = map[*leaseContext]struct{}{}
	}
	on.contexts[lc] = struct{}{}
	return func() {
		l.of.lock()
		defer l.of.unlock()
		delete(on.contexts, lc)
	}
}

// endLocked ends the lease, once. After the end by a shutdown, a loss is still recorded.
func (l *Lease) endLocked(err error) {
	if l.err != nil {
		if onlyClosed(l.err) && errors.Is(err, ErrLeaseLost) {
			l.err = because(ErrClosed, err)
		}
		return
	}
	l.err = err
	if l.listeners == nil {
		return
	}
	if l.listeners.done != nil {
		close(l.listeners.done)
	}
	if len(l.listeners.contexts) == 0 {
		return
	}
	why := l.error(err)
	for lc := range l.listeners.contexts {
		l.of.cancelLocked(lc.cancel, why)
	}
	l.listeners.contexts = nil
}

// Extend makes the lease last for at least d from now; it never shortens it. d has the
// bounds of WithLease and is rounded up to whole milliseconds. ctx and the command
// time-out bound the call. The error matches
//   - ErrLeaseLost, and the cause, if the lease is lost, maybe as Redis says now;
//   - ErrUnlocked, if the lease was unlocked;
//   - ErrClosed, if the client shuts down: a renewed lease is still renewed, any other
//     lasts until its Deadline;
//   - ErrInvalidArgument, if d is out of bounds;
//   - ErrNotHeld, if the lease is nil or zero;
//   - ErrUnreachable, if Redis did not answer within the command time-out;
//   - ctx.Err(), if ctx ended first;
//   - or ErrRefused, if Redis replied with an error.
//
// After one of the last three the deadline has not moved. Redis may keep the lock
// longer.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if l.none() {
		return errNoLease
	}
	if ctx == nil {
		return l.error(errNoContext)
	}
	if err := checkLease("Extend", d); err != nil {
		return l.error(err)
	}
	c := l.of.client()
	if !c.begin() {
		return l.error(ErrClosed)
	}
	defer c.end()
	if err := l.Err(); err != nil {
		return err
	}
	return l.of.extend(ctx, l, wholeMillis(d))
}

// Unlock ends the lease. With the owner's last lease it frees the lock and wakes the
// next waiter.
//
// It works even if ctx has ended: it takes only the values of ctx, and WithUnlockTimeout
// bounds it. It returns nil if this call ended a lease that was valid until then.
// Otherwise the error matches
//   - ErrLeaseLost, and the cause, if the lease had been lost;
//   - ErrUnlocked, if Unlock was called before;
//   - ErrNotHeld, if the lease is nil or zero;
//   - ErrUnconfirmed, if Redis did not confirm the release. The error matches
//     ErrUnreachable too if there was no answer in time, ErrRefused if Redis replied with
//     an error, or is that of go-redis, such as redis.ErrClosed. The lease has ended all the same,
//     and the release is repeated in the background until Redis confirms it, the lease
//     has run out, or the Client is shut down.
//
// It matches ErrUnconfirmed and ErrUnreachable too if a reply was lost, the release was sent
// again, and that found the hold gone. Most often the first release has ended it. But Redis
// may also have lost it before, as in a failover, which breaks connections too; then another
// owner may have had the lock. Nothing is repeated: nothing is left of the hold.
//
// Unlock of a RedLock matches ErrUnconfirmed alone if voters have lost their votes, and without
// one that was given later than the others, or anew, there was no majority: another owner may have had
// the lock before that vote.
//
// It works the same during and after Shutdown, but then nothing is repeated in the
// background.
func (l *Lease) Unlock(ctx context.Context) error {
	if l.none() {
		return errNoLease
	}
	if ctx == nil {
		ctx = context.Background()
	}
	return l.end(ctx, l.of.release)
}

// end is Unlock by a function that ends the lease.
func (l *Lease) end(ctx context.Context, release func(ctx context.Context, l *Lease, called instant) error) error {
	called, first := l.claim()
	if !first {
		return l.error(ErrUnlocked)
	}
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	over := false
	defer func() {
		if !over { // an Observer has ended the goroutine
			_ = l.told(because(ErrUnconfirmed, ErrUnreachable))
		}
	}()
	err := release(ctx, l, called)
	over = true
	return l.told(err)
}

// claim begins an Unlock, at the time that it returns. Only the first Unlock has anything
// to do; told ends it, and Shutdown waits for that.
func (l *Lease) claim() (called instant, first bool) {
	c := l.of.client()
	called = c.now()
	l.of.lock()
	defer l.of.unlock()
	if l.unlocked {
		return called, false
	}
	l.unlocked = true
	c.calls.Add(1)
	return called, true
}

// told ends an Unlock: it tells the observer its result, and returns that.
func (l *Lease) told(err error) error {
	c := l.of.client()
	defer c.end()
	if err != nil {
		err = l.error(err)
	}
	l.of.tellUnlocked(l, err)
	return err
}

// granted tells the Observer of the end of an acquire. If that ends the goroutine, nobody gets
// the lease. l is nil if there is none.
func (l *Lease) granted(o *observed, e AcquireEvent) {
	if o == nil {
		return
	}
	told := false
	if l != nil {
		e.HoldID, e.Token, e.Entry = l.HoldID(), l.Token(), int(l.entry)
		defer func() {
			if !told {
				l.giveBack(context.Background(), func() {})
			}
		}()
	}
	o.end(e)
	told = true
}

// giveBack unlocks in the background, where Shutdown waits for it. The watchdog repeats
// what fails.
func (l *Lease) giveBack(ctx context.Context, done func()) {
	c := l.of.client()
	c.calls.Add(1)
	c.wire.Go(func() {
		defer c.end()
		defer done()
		_ = l.Unlock(ctx)
	})
}
