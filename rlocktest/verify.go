package rlocktest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock"
)

// Held is what a holder of a lock has, for [Verify]: an *rlock.Lease is one. A method Token() int64, or
// Context(context.Context) context.Context, is verified too.
type Held interface {
	Unlock(ctx context.Context) error
	Err() error            // nil while the lock is held
	Done() <-chan struct{} // closed when it is no longer held
}

// Acquirer is a lock that [Verify] can verify: every exclusive rlock.Locker, of the library or of a user, is one.
// A lock that has no options ignores them.
type Acquirer[H Held] interface {
	Lock(ctx context.Context, opts ...rlock.AcquireOption) (H, error)
	TryLock(ctx context.Context, opts ...rlock.TryOption) (H, error)
}

// Verify checks that a lock keeps the contract of rlock.Locker and rlock.Lease: a wrapper around a lock of rlock,
// a fake for unit tests, or a lock of another library behind an adapter.
//
//	func TestMeteredLockIsALock(t *testing.T) {
//		rlocktest.Verify(t, func(s *rlocktest.Server, name string) metered {
//			return metered{s.NewClient().NewLock(name)}
//		})
//	}
//
// open is called once for each process that uses the lock of a name, so it makes a new client each time, by
// [Server.NewClient], or by [Server.Redis] for other libraries. Locks of one Server and name exclude each other. The
// lock must be exclusive: not the read side of a read-write lock.
//
// Each case is a sub-test in a bubble of testing/synctest, with a new server. So all that the lock uses must be
// made in open, nothing may wait for a socket, and Verify is not called in a bubble.
//
//	exclusion            a second TryLock is refused, of another process and of the same
//	contention           six goroutines of three processes all get their turns, one at a time
//	refusal              the error matches rlock.ErrNotAcquired and no other, comes soon, and leaves nothing
//	release              Unlock frees the lock, also if its context has ended, and ends Held
//	second release       a second Unlock returns an error, and does not free the lock of the next holder
//	canceled wait        a waiter whose context ends returns its error, and leaves no place and no hold
//	bounded wait         rlock.WithWait ends a wait in time, with rlock.ErrNotAcquired
//	wake-up              a release wakes a waiter within a second
//	re-entry             a call with Held's Context enters again, or is refused; the lock is free after the last Unlock
//	tokens               they rise from hold to hold
//	tokens after a loss  they rise also if Redis loses its data between two holds
//	renewal              a hold lasts for hours
//	removal              Redis has lost its data: Held ends within a minute, with rlock.ErrLeaseLost
//	outage               Redis does not answer for a day: Held ends with rlock.ErrLeaseLost, and then the lock is free
//	pause                all processes stop for a day: when another process has the lock, Held has ended
//	late release         Unlock of a lost hold returns rlock.ErrLeaseLost, and leaves the next holder alone
//	keys                 after a day no key of the lock is left in Redis
//
// The parameter without lists the cases that the lock does not promise. The first six cannot be left out. A fake that is not in Redis
// leaves out the last five, and a lock whose holds have no Token both cases of tokens. An rlock.FencedLock leaves out tokens
// after a loss, and keys: its counter is lost with the data, and stays otherwise. An rlock.RedLock leaves out keys: the
// counter of its tokens stays. In pause, the leases of the lock must run on [Server.Now].
func Verify[L Acquirer[H], H Held](t *testing.T, open func(s *Server, name string) L, without ...string) {
	t.Helper()
	for i, name := range without {
		n := slices.IndexFunc(verifications, func(c verification) bool { return c.name == name })
		switch {
		case n < 0:
			t.Fatalf("rlocktest: Verify has no case %q", name)
		case !verifications[n].optional:
			t.Fatalf("rlocktest: Verify: every lock has to pass the case %q", name)
		case slices.Contains(without[:i], name):
			t.Fatalf("rlocktest: Verify: the case %q is left out twice", name)
		}
	}
	for i, c := range verifications {
		if slices.Contains(without, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &trial{T: t, srv: New(t), name: fmt.Sprintf("verified-%02d", i)}
				v.open = func() process { return processOf(v, open(v.srv, v.name)) }
				ctx, cancel := context.WithCancel(context.Background())
				v.ctx = ctx
				t.Cleanup(func() { v.leave(cancel) })
				c.run(v)
			})
		})
	}
}

// verification is a case of Verify.
type verification struct {
	name     string
	optional bool
	run      func(v *trial)
}

// trial is one run of a case.
type trial struct {
	*testing.T
	srv  *Server
	name string         // of the lock
	open func() process // makes one more process
	ctx  context.Context

	mu    sync.Mutex // guards the rest; never held while waiting
	holds []Held     // all that were granted, to be unlocked at the end
}

// process is a lock as one process has it.
type process struct {
	lock func(ctx context.Context, opts ...rlock.AcquireOption) (Held, error)
	try  func(ctx context.Context) (Held, error)
}

// processOf returns a lock whose holds are remembered by the trial.
func processOf[L Acquirer[H], H Held](v *trial, l L) process {
	granted := func(h H, err error) (Held, error) {
		switch value := reflect.ValueOf(h); {
		case err != nil:
			return nil, err
		case !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil():
			return nil, fmt.Errorf("%T returned neither a hold nor an error: its user would work without the lock", l)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.holds = append(v.holds, h)
		return h, nil
	}
	return process{
		lock: func(ctx context.Context, opts ...rlock.AcquireOption) (Held, error) {
			return granted(l.Lock(ctx, opts...))
		},
		try: func(ctx context.Context) (Held, error) { return granted(l.TryLock(ctx)) },
	}
}

// leave ends what a case has begun, so that goroutines that a wrong lock has blocked can leave the bubble.
func (v *trial) leave(cancel func()) {
	v.srv.Recover()
	cancel()
	for range 2 { // the second time for waiters that were granted the lock in the first
		v.mu.Lock()
		holds := v.holds
		v.holds = nil
		v.mu.Unlock()
		for _, h := range holds {
			_ = h.Unlock(context.Background())
		}
		time.Sleep(time.Minute)
	}
}

// patience is how long a call may take that waits for no holder, and in which nothing fails. Nothing takes time on
// an in-memory server but what a lock adds.
const patience = time.Second

// within runs a call that must return in time.
func (v *trial) within(d time.Duration, what string, call func()) {
	v.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		v.Fatalf("%s has not returned after %v: its caller hangs", what, d)
	}
}

// acquires returns a hold of a lock that is free.
func (v *trial) acquires(p process, when string) (h Held) {
	v.Helper()
	var err error
	v.within(patience, "TryLock "+when, func() { h, err = p.try(v.ctx) })
	if err != nil {
		v.Fatalf("the lock is not free %s: %v: its users wait for nobody", when, err)
	}
	return h
}

// refused checks that a lock has another holder.
func (v *trial) refused(p process, when string) (err error) {
	v.Helper()
	var h Held
	v.within(patience, "TryLock "+when, func() { h, err = p.try(v.ctx) })
	if h != nil {
		v.Fatalf("the lock has two holders %s: both write, and one overwrites the other", when)
	}
	return err
}

// lasts checks that a hold lasts.
func (v *trial) lasts(h Held, when string) {
	v.Helper()
	if err := h.Err(); err != nil {
		v.Fatalf("the hold has ended %s: %v: its holder stops for no reason", when, err)
	}
	if isClosed(h.Done()) {
		v.Fatalf("Done is closed %s, and Err is nil: it is unknown whether the lock is held", when)
	}
}

// over checks that a holder is notified of the end of its hold.
func (v *trial) over(h Held, when string) {
	v.Helper()
	if h.Err() == nil {
		v.Fatalf("Err is nil %s: the holder continues without the lock", when)
	}
	if !isClosed(h.Done()) {
		v.Fatalf("Done is open %s: a holder that waits for it continues without the lock", when)
	}
}

// releases unlocks a hold that has not been lost.
func (v *trial) releases(h Held, ctx context.Context) {
	v.Helper()
	var err error
	v.within(patience, "Unlock", func() { err = h.Unlock(ctx) })
	if err != nil {
		v.Fatalf("Unlock of a hold that lasts: %v: its caller believes that the work was without success", err)
	}
}

// waiter is a call of Lock that waits.
type waiter struct {
	done chan struct{} // closed when it has returned
	hold Held
	err  error
}

// waits begins a call of Lock that has to wait, and gives it time to get its place.
func (v *trial) waits(p process, ctx context.Context, opts ...rlock.AcquireOption) *waiter {
	v.Helper()
	w := &waiter{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.hold, w.err = p.lock(ctx, opts...)
	}()
	time.Sleep(patience)
	if isClosed(w.done) && w.err == nil {
		v.Fatal("Lock does not wait for the holder: the lock has two holders")
	}
	if isClosed(w.done) {
		v.Fatalf("Lock does not wait for the holder: %v", w.err)
	}
	return w
}

// keys returns the keys in Redis that have the name of the lock.
func (v *trial) keys() []string {
	return slices.DeleteFunc(v.srv.mini.Keys(), func(key string) bool { return !strings.Contains(key, v.name) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
