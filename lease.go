package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
)

// Lease is one entry into a lock, until it is unlocked, lost, or its Client is shut down. Any goroutine
// may use it. A nil or zero Lease has ended. At its deadline it is lost, whether Redis can be reached or
// not. It cannot stop code: watch Done, and let the resource check the Token.
type Lease struct {
	hold  *hold      // nil for the lease of a MultiLock, and for a zero Lease
	multi *multiHold // nil for the lease of one lock, and for a zero Lease
	since clock.Instant

	// For an Observer. Only the first Unlock uses endsHold and handedOver.
	entry      int32 // number of leases that the hold has had, including this one
	endsHold   bool  // Unlock ends the hold
	handedOver bool  // Unlock hands the hold over

	isRenewed bool // the watchdog renews the hold for this lease

	// Guarded by guard.
	isUnlocked bool       // Unlock was called
	err        error      // why the lease ended; nil while it lasts
	listeners  *listeners // nil before the first listener
	nextOpen   *Lease     // next open lease of the hold
}

// listeners has the channels and contexts that depend on a lease.
type listeners struct {
	done     chan struct{}              // closed when the lease ends; nil before the first Done
	contexts map[*leaseContext]struct{} // canceled when the lease ends
	request  *releaseRequest            // nil if the holder does not listen for requests to release
}

// leaseContext is a context of a lease. Its Err compares the time with the deadline, as Err of the lease does: code that
// was stopped past the deadline must get an error from it even before the watchdog has canceled the context.
type leaseContext struct {
	context.Context // canceled at the end of the lease
	parent          context.Context
	lease           *Lease
	cancel          context.CancelCauseFunc
}

// Err implements context.Context. If it is not nil, Done is already closed.
func (lc *leaseContext) Err() error {
	if err := lc.Context.Err(); err != nil {
		return err
	}
	_ = lc.parent.Err() // the parent may be the context of an outer lease, whose end reaches this context immediately
	if err := lc.lease.Err(); err != nil {
		lc.cancel(err) // another goroutine may have ended the lease, and be about to cancel too
	}
	return lc.Context.Err()
}

func (lc *leaseContext) String() string { return fmt.Sprint(lc.Context) }

// guard is a mutex that guards leases. Contexts are canceled after its
// critical sections, because that may run code of the user, which may call methods
// of the lease.
type guard struct {
	mu     sync.Mutex // guards the rest, and fields whose comments refer to it
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

// cancelLocked cancels a context after the critical section.
func (g *guard) cancelLocked(fn context.CancelCauseFunc, why error) {
	g.ending = &ending{fn, why, g.ending}
}

var errNoLease = &Error{Err: ErrNotHeld}

// closedChan is the Done channel of a nil or zero lease.
var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// none reports whether the lease is nil or zero.
func (l *Lease) none() bool { return l == nil || l.hold == nil && l.multi == nil }

// guard returns the guard of the hold or of the multiHold.
func (l *Lease) guard() *guard {
	if l.multi != nil {
		return &l.multi.guard
	}
	return &l.hold.guard
}

func (l *Lease) lock()   { l.guard().lock() }
func (l *Lease) unlock() { l.guard().unlock() }

// client returns the Client of the hold, or of the first member.
func (l *Lease) client() *Client {
	if l.multi != nil {
		return l.multi.members[0].client()
	}
	return l.hold.core.c
}

// chain adds the holds of the lease to the chain of a context.
func (l *Lease) chain(up *chain) *chain {
	if l.multi == nil {
		return up.with(l.hold)
	}
	for _, m := range l.multi.members {
		up = m.chain(up)
	}
	return up
}

// checkLocked ends the lease if its deadline has passed.
func (l *Lease) checkLocked() {
	if l.multi != nil {
		l.multi.checkLocked()
		return
	}
	l.hold.checkLocked(l.hold.core.c.now())
}

// Name is the name of the lock, with the client's prefix.
func (l *Lease) Name() string {
	switch {
	case l.none():
		return ""
	case l.multi != nil:
		return l.multi.name
	}
	return l.hold.core.name()
}

// String names the lock and the hold, and says whether the lease has ended.
func (l *Lease) String() string {
	if l.none() {
		return "no lease"
	}
	text := fmt.Sprintf("lease of %q (hold %s)", l.Name(), l.HoldID())
	switch err := l.Err(); {
	case errors.Is(err, ErrUnlocked):
		text += ", unlocked"
	case errors.Is(err, ErrLeaseLost):
		text += ", lost"
	}
	return text
}

// HoldID is the id of the hold in Redis: "<client uuid>:<number>". A re-entry, and a hold that was
// handed over, have the id of the first.
func (l *Lease) HoldID() string {
	switch {
	case l.none():
		return ""
	case l.multi != nil:
		return l.multi.members[0].HoldID()
	}
	return l.hold.id()
}

// Token is the fencing token: greater than the token of every earlier hold of this lock, the same for each
// re-entry, and for a [MultiLock] the greatest of its members. A resource that refuses lower tokens than
// its highest is safe from holders that continue after a loss. When tokens may repeat:
// https://go-rlock.github.io/rlock/latest/guarantees/#what-is-not-guaranteed
func (l *Lease) Token() int64 {
	switch {
	case l.none():
		return 0
	case l.multi != nil:
		return l.multi.token()
	}
	return l.hold.token
}

// Members are the leases of the members of a MultiLock, in the order of their names, each with a token
// of its own. To unlock one ends the whole.
func (l *Lease) Members() []*Lease {
	if l == nil || l.multi == nil {
		return nil
	}
	return slices.Clone(l.multi.members)
}

// Deadline is the current end of the lease. Renewals move it.
func (l *Lease) Deadline() time.Time {
	switch {
	case l.none():
		return time.Time{}
	case l.multi != nil:
		return l.multi.deadline()
	}
	l.hold.lock()
	defer l.hold.unlock()
	return l.hold.deadlineLocked()
}

// Err is nil while the lease lasts. Later it matches ErrUnlocked, ErrLeaseLost and its cause, or ErrClosed:
// the lock is then held until Unlock or a loss.
func (l *Lease) Err() error {
	if l.none() {
		return errNoLease
	}
	l.lock()
	defer l.unlock()
	l.checkLocked()
	if l.err == nil {
		return nil
	}
	return l.error(l.err)
}

func (l *Lease) error(err error) error {
	return &Error{Lock: l.Name(), HoldID: l.HoldID(), Err: err}
}

// Done is closed when the lease ends: by Unlock, before another owner can have the lock; by a loss; or
// when the client begins to shut down.
func (l *Lease) Done() <-chan struct{} {
	if l.none() {
		return closedChan
	}
	l.lock()
	defer l.unlock()
	if l.err != nil && (l.listeners == nil || l.listeners.done == nil) {
		return closedChan
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

// Context returns a copy of parent that is canceled when the lease ends, as by a loss; context.Cause says
// why. Do the work with it. Calls with it re-enter this lock, and the locks that parent descends from, and
// no others. So goroutines that share it exclude each other from every other lock, but not from this one.
// The lease remembers it until one of both ends. After a pause of the process that was longer than the
// lease, its Err reports the loss immediately.
func (l *Lease) Context(parent context.Context) context.Context {
	if parent == nil {
		parent = context.Background()
	}
	if l.none() {
		ctx, cancel := context.WithCancelCause(chainFrom(parent).in(parent, nil))
		cancel(errNoLease)
		return ctx
	}
	ctx, cancel := context.WithCancelCause(l.chain(chainFrom(parent)).in(parent, l))
	lc := &leaseContext{ctx, parent, l, cancel}
	forget := l.cancelAtEnd(lc)
	context.AfterFunc(ctx, forget) // if parent ends first
	return lc
}

// onEnd calls a function with the cause when the lease ends, immediately if it has ended.
// The function must not lock a mutex that is held while methods of the lease are called.
func (l *Lease) onEnd(fn context.CancelCauseFunc) (forget func()) {
	return l.cancelAtEnd(&leaseContext{cancel: fn})
}

func (l *Lease) cancelAtEnd(lc *leaseContext) (forget func()) {
	l.lock()
	defer l.unlock()
	l.checkLocked()
	if l.err != nil {
		l.guard().cancelLocked(lc.cancel, l.error(l.err))
		return func() {}
	}
	on := l.listenersLocked()
	if on.contexts == nil {
		on.contexts = map[*leaseContext]struct{}{}
	}
	on.contexts[lc] = struct{}{}
	return func() {
		l.lock()
		defer l.unlock()
		delete(on.contexts, lc)
	}
}

// endLocked ends the lease, once. If a shutdown has ended it, a later loss is still recorded.
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
		l.guard().cancelLocked(lc.cancel, why)
	}
	l.listeners.contexts = nil
}

// Extend makes the lease last for at least d from now, from MinLease to MaxLease; it never shortens it.
// Only a lease [WithLease] needs it: others are renewed. The error matches ErrLeaseLost and its cause,
// ErrUnlocked, ErrNotHeld, ErrClosed or ErrInvalidArgument. After ErrUnreachable, ctx.Err() or ErrRefused
// the deadline is unchanged, though Redis may keep the hold longer.
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
	c := l.client()
	if !c.beginCall() {
		return l.error(ErrClosed)
	}
	defer c.endCall()
	if err := l.Err(); err != nil {
		return err
	}
	if l.multi != nil {
		return l.multi.extend(ctx, wholeMillis(d))
	}
	return l.hold.extend(ctx, l, wholeMillis(d))
}

// Unlock ends the lease. With the owner's last lease it frees the lock and wakes the next waiter. It
// works even if ctx has ended: WithUnlockTimeout bounds it. It returns nil if this call ended a valid
// lease. Otherwise the error matches
//   - ErrLeaseLost and its cause, if the lease had been lost;
//   - ErrUnlocked, if Unlock was called before, or ErrNotHeld, if the lease is nil or zero;
//   - ErrUnconfirmed, if Redis did not confirm the release, which is then repeated in the background;
//     with ErrUnreachable after a lost reply, or alone for a RedLock, also if the lease may have been
//     lost before: https://go-rlock.github.io/rlock/latest/errors/#when-a-release-is-not-confirmed
func (l *Lease) Unlock(ctx context.Context) error {
	if l.none() {
		return errNoLease
	}
	if ctx == nil {
		ctx = context.Background()
	}
	return l.end(ctx, nil)
}

// Do calls fn with the context of the lease, and unlocks the lease when fn has returned or panicked: for
// leases that [Do] does not acquire, as of Adopt or Enter. The error is as from [Do]. If the lease has
// ended before, fn is not called, and the error matches ErrNotRun and what has ended it.
func (l *Lease) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	switch {
	case fn == nil:
		return notRun{l.error(invalid("Do needs a function"))}
	case ctx == nil:
		return notRun{l.error(errNoContext)}
	}
	if err := l.Err(); err != nil {
		return notRun{joined(err, onlyUnconfirmed(l.Unlock(ctx)))}
	}
	cut, err, unlock := l.under(ctx, fn)
	return cut.result(err, unlock)
}

// under calls fn under the lease, and unlocks it.
func (l *Lease) under(ctx context.Context, fn func(ctx context.Context) error) (cut cutOff, err, unlock error) {
	cut = l.call(ctx, func(ctx context.Context) { err = fn(ctx) }, func() { _ = l.Unlock(ctx) })
	return cut, err, l.Unlock(ctx)
}

// call calls fn with the context of the lease, and returns why that context had ended. It calls panicked if fn panics.
func (l *Lease) call(ctx context.Context, fn func(ctx context.Context), panicked func()) cutOff {
	returned := false
	defer func() {
		if !returned {
			panicked()
		}
	}()
	inside := l.Context(ctx)
	fn(inside)
	returned = true
	return cutOffOf(ctx, inside)
}

// end is Unlock. If the lease is the last lease of a hold that is not lost, by ends the hold, or a release if by is nil.
func (l *Lease) end(ctx context.Context, by *finish) error {
	called, first := l.claim()
	if !first {
		return l.error(ErrUnlocked)
	}
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	if l.multi != nil {
		return l.endUnlock(l.multi.release(ctx))
	}
	return l.endUnlock(l.hold.endLease(ctx, l, called, by))
}

// claim begins an Unlock, and returns the current time. Only the first Unlock does anything: it has to call
// endUnlock, for which Shutdown waits.
func (l *Lease) claim() (called clock.Instant, first bool) {
	c := l.client()
	called = c.now()
	l.lock()
	defer l.unlock()
	if l.isUnlocked {
		return called, false
	}
	l.isUnlocked = true
	c.calls.Add(1)
	return called, true
}

// endUnlock reports the result of an Unlock to the Observer, and returns it.
func (l *Lease) endUnlock(err error) error {
	defer l.client().endCall()
	if err != nil {
		err = l.error(err)
	}
	if l.hold != nil { // otherwise the Observer gets the events of the members
		l.hold.reportUnlocked(l, err)
	}
	return err
}

// granted reports the end of an acquire to the Observer. l is nil if there is no lease.
func (l *Lease) granted(o *observed, e AcquireEvent) {
	if o == nil {
		return
	}
	if l != nil {
		e.HoldID, e.Token, e.Entry = l.HoldID(), l.Token(), int(l.entry)
	}
	o.end(e)
}

// LeaseFrom returns the innermost lease that ctx descends from, by [Lease.Context]: also in the
// functions of Do, Once.Do and Election.Run. Do not unlock it there. It may have ended. ok is false if
// there is none. See https://go-rlock.github.io/rlock/latest/using-a-lock/#owners-and-contexts
func LeaseFrom(ctx context.Context) (lease *Lease, ok bool) {
	if ctx == nil {
		return nil, false
	}
	_, lease = descentOf(ctx)
	return lease, lease != nil
}

// releaseRequest records whether a request to release a lease was received. The guard of the lease guards it.
type releaseRequest struct {
	requested chan struct{} // closed when a request was received
	received  bool
	then      []func() // called when a request was received
}
