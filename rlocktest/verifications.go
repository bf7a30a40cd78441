package rlocktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock"
)

// verifications are the cases of Verify.
var verifications = []verification{
	{"exclusion", false, verifyExclusion},
	{"contention", false, verifyContention},
	{"refusal", false, verifyRefusal},
	{"release", false, verifyRelease},
	{"second release", false, verifySecondRelease},
	{"canceled wait", false, verifyCanceledWait},
	{"bounded wait", true, verifyBoundedWait},
	{"wake-up", true, verifyWakeUp},
	{"re-entry", true, verifyReentry},
	{"tokens", true, verifyTokens},
	{"tokens after a loss", true, verifyTokensAfterLoss},
	{"renewal", true, verifyRenewal},
	{"removal", true, verifyRemoval},
	{"outage", true, verifyOutage},
	{"pause", true, verifyPause},
	{"late release", true, verifyLateRelease},
	{"keys", true, verifyKeys},
}

const (
	// aDay is longer than every lease.
	aDay = rlock.MaxLease + time.Hour

	// noticed is longer than a watchdog lease: a hold is renewed at least once in it, or lost.
	noticed = 2 * rlock.DefaultWatchdogLease
)

func verifyExclusion(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	v.refused(b, "of two processes")
	v.refused(a, "of one process")
	v.lasts(h, "after others were refused")
}

func verifyContention(v *trial) {
	const processes, goroutines, sections = 3, 2, 5
	var inside, done atomic.Int32
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(v.ctx, time.Hour)
	defer cancel()
	for range processes {
		p := v.open()
		for range goroutines {
			wg.Go(func() {
				for range sections {
					h, err := p.lock(ctx)
					if err != nil {
						v.Errorf("a waiter for a lock that others release again and again: %v", err)
						return
					}
					if inside.Add(1) > 1 {
						v.Error("two goroutines are in the section: an update is lost")
					}
					time.Sleep(time.Millisecond)
					inside.Add(-1)
					if err := h.Unlock(ctx); err != nil {
						v.Errorf("Unlock after a short section: %v", err)
						return
					}
					done.Add(1)
				}
			})
		}
	}
	v.within(2*time.Hour, "Lock under contention", wg.Wait)
	if n := done.Load(); n != processes*goroutines*sections {
		v.Errorf("%d of %d sections have run", n, processes*goroutines*sections)
	}
}

func verifyRefusal(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	v.wantNotAcquired("TryLock", v.refused(b, "of two processes"))
	v.releases(h, v.ctx)
	v.acquires(v.open(), "after a refused TryLock and the release")
}

// wantNotAcquired checks the error of a call that was refused because another has the lock.
func (v *trial) wantNotAcquired(call string, err error) {
	v.Helper()
	if !errors.Is(err, rlock.ErrNotAcquired) {
		v.Errorf("%s of a lock that another holds: %v, does not match ErrNotAcquired: its caller takes it for a failure", call, err)
	}
	for _, other := range []error{rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrLeaseLost, rlock.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, other) {
			v.Errorf("%s of a lock that another holds: %v, matches %q: its caller takes it for a failure", call, err, other)
		}
	}
}

func verifyRelease(v *trial) {
	a, b := v.open(), v.open()
	ended, cancel := context.WithCancel(v.ctx)
	cancel()
	for _, end := range []struct {
		when string
		ctx  context.Context
	}{
		{"after Unlock", v.ctx},
		{"after Unlock with a context that has ended", ended},
	} {
		h := v.acquires(a, "before "+end.when)
		v.lasts(h, "when the lock has just been acquired")
		v.releases(h, end.ctx)
		v.over(h, end.when)
		v.releases(v.acquires(b, end.when), v.ctx)
	}
}

func verifySecondRelease(v *trial) {
	a, b, c := v.open(), v.open(), v.open()
	h := v.acquires(a, "before its first use")
	v.releases(h, v.ctx)
	if h.Unlock(v.ctx) == nil {
		v.Error("a second Unlock returns nil: code that releases twice is not found")
	}
	next := v.acquires(b, "after the release")
	_ = h.Unlock(v.ctx)
	v.refused(c, "after the first holder has unlocked once more")
	v.lasts(next, "after the first holder has unlocked once more")
}

func verifyCanceledWait(v *trial) {
	a, b, c := v.open(), v.open(), v.open()
	h := v.acquires(a, "before its first use")
	ctx, cancel := context.WithCancel(v.ctx)
	defer cancel()
	w := v.waits(b, ctx)
	cancel()
	v.within(patience, "Lock whose context has ended", func() { <-w.done })
	if !errors.Is(w.err, context.Canceled) {
		v.Errorf("Lock whose context has ended: %v, does not match the error of the context", w.err)
	}
	time.Sleep(patience) // what is given back after the call returned
	v.releases(h, v.ctx)
	time.Sleep(patience) // for a waiter that has not left
	v.releases(v.acquires(c, "after a waiter has left and the holder has unlocked"), v.ctx)
	if _, err := b.lock(ctx); err == nil {
		v.Error("Lock of a free lock with a context that has ended: its caller has gone, and keeps the lock")
	}
	time.Sleep(patience)
	v.acquires(c, "after a call with a context that had ended")
}

func verifyBoundedWait(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	for _, wait := range []time.Duration{0, 10 * time.Second} {
		var err error
		began := time.Now()
		v.within(wait+patience, fmt.Sprintf("Lock WithWait(%v)", wait), func() { _, err = b.lock(v.ctx, rlock.WithWait(wait)) })
		if err == nil {
			v.Fatal("the lock has two holders: both write, and one overwrites the other")
		}
		v.wantNotAcquired(fmt.Sprintf("Lock WithWait(%v)", wait), err)
		if passed := time.Since(began); passed < wait {
			v.Errorf("Lock WithWait(%v) gave up after %v: it might have got the lock", wait, passed)
		}
	}
	time.Sleep(patience) // what is given back after the call returned
	v.releases(h, v.ctx)
	v.acquires(v.open(), "after waiters have left and the holder has unlocked")
}

func verifyWakeUp(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	w := v.waits(b, v.ctx)
	time.Sleep(noticed) // it is between two polls, and long after it has subscribed
	if isClosed(w.done) {
		v.Fatalf("the lock is held, and a waiter has returned: %v", w.err)
	}
	v.releases(h, v.ctx)
	v.within(patience, "Lock after the holder has unlocked", func() { <-w.done })
	if w.err != nil {
		v.Fatalf("Lock after the holder has unlocked: %v", w.err)
	}
	v.lasts(w.hold, "when a waiter has got the lock")
	v.refused(v.open(), "after a waiter has got the lock")
}

func verifyReentry(v *trial) {
	a, b := v.open(), v.open()
	outer := v.acquires(a, "before its first use")
	owner, ok := outer.(interface {
		Context(context.Context) context.Context
	})
	if !ok {
		v.Fatalf("%T has no Context, so no call can be of the same owner: leave out this case", outer)
	}
	var inner Held
	var err error
	v.within(patience, "TryLock by the owner", func() { inner, err = a.try(owner.Context(v.ctx)) })
	if err != nil && !errors.Is(err, rlock.ErrReentrant) {
		v.Errorf("the owner is refused: %v, does not match ErrReentrant: it would wait for itself", err)
	}
	if err == nil {
		v.refused(a, "of two owners in one process")
		v.releases(inner, v.ctx)
		v.lasts(outer, "after the second of two entries was unlocked")
		v.refused(b, "after the second of two entries was unlocked")
	}
	v.releases(outer, v.ctx)
	v.acquires(b, "after all entries were unlocked")
}

func verifyTokens(v *trial) {
	a, b := v.open(), v.open()
	last := int64(0)
	for range 2 {
		last = v.tokenAbove(last, a, "after the release")
		last = v.tokenAbove(last, b, "after the release")
	}
}

func verifyTokensAfterLoss(v *trial) {
	a, b := v.open(), v.open()
	last := v.tokenAbove(0, a, "before its first use")
	last = v.tokenAbove(last, a, "after the release")
	v.srv.mini.FlushAll()
	time.Sleep(time.Millisecond) // a server without data continues from its clock
	v.tokenAbove(last, b, "after Redis has lost its data")
}

// tokenAbove has the lock once, and returns its token, which has to be above the last one.
func (v *trial) tokenAbove(last int64, p process, when string) int64 {
	v.Helper()
	h := v.acquires(p, when)
	fenced, ok := h.(interface{ Token() int64 })
	if !ok {
		v.Fatalf("%T has no Token: leave out this case", h)
	}
	token := fenced.Token()
	if token <= last {
		v.Errorf("token %d %s, after %d: a resource that checks tokens refuses the holder", token, when, last)
	}
	v.releases(h, v.ctx)
	return token
}

func verifyRenewal(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	for hours := 1; hours <= 3; hours++ {
		v.srv.Advance(time.Hour)
		v.lasts(h, fmt.Sprintf("after %d hours of work", hours))
		v.refused(b, fmt.Sprintf("after %d hours of work", hours))
	}
	v.releases(h, v.ctx)
}

func verifyRemoval(v *trial) {
	h := v.acquires(v.open(), "before its first use")
	v.srv.mini.FlushAll()
	v.srv.Advance(noticed)
	v.over(h, "a minute after Redis has lost its data")
	v.wantLost(h)
}

// wantLost checks what the holder of a lost hold gets.
func (v *trial) wantLost(h Held) {
	v.Helper()
	if err := h.Err(); !errors.Is(err, rlock.ErrLeaseLost) {
		v.Errorf("Err of a lost hold: %v, does not match ErrLeaseLost: it looks as if it were unlocked", err)
	}
	var err error
	v.within(2*rlock.DefaultUnlockTimeout, "Unlock of a lost hold", func() { err = h.Unlock(v.ctx) })
	if !errors.Is(err, rlock.ErrLeaseLost) {
		v.Errorf("Unlock of a lost hold: %v, does not match ErrLeaseLost: its caller takes the work for done", err)
	}
}

func verifyOutage(v *trial) {
	h := v.acquires(v.open(), "before its first use")
	v.srv.Disconnect()
	timer := time.NewTimer(aDay)
	defer timer.Stop()
	select {
	case <-h.Done():
	case <-timer.C:
	}
	v.over(h, "a day after Redis went down")
	v.srv.Advance(aDay) // a lease may end in Redis long after its holder has given it up
	v.srv.Recover()
	b := v.open()
	next := v.acquires(b, "when Redis is back, and the lease is over")
	v.wantLost(h)
	v.lasts(next, "after the holder before it has unlocked")
}

func verifyPause(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	v.srv.Pause(aDay)
	next := v.acquires(b, "after a pause of a day") // a lock that stays held after its process has died
	v.over(h, "after a pause of a day, when another process has the lock")
	v.wantLost(h)
	v.lasts(next, "after the holder before it has unlocked")
	v.refused(v.open(), "after the holder before it has unlocked")
}

func verifyLateRelease(v *trial) {
	a, b, c := v.open(), v.open(), v.open()
	h := v.acquires(a, "before its first use")
	v.srv.mini.FlushAll()
	next := v.acquires(b, "after Redis has lost its data")
	var err error
	v.within(patience, "Unlock of a lost hold", func() { err = h.Unlock(v.ctx) })
	if !errors.Is(err, rlock.ErrLeaseLost) {
		v.Errorf("Unlock of a lost hold: %v, does not match ErrLeaseLost: its caller takes the work for done", err)
	}
	v.refused(c, "after the holder before has unlocked its lost hold")
	v.lasts(next, "after the holder before has unlocked its lost hold")
	v.over(h, "after Unlock of a lost hold")
}

func verifyKeys(v *trial) {
	a, b := v.open(), v.open()
	h := v.acquires(a, "before its first use")
	if len(v.keys()) == 0 {
		v.Fatalf("the lock is held, and no key in Redis has its name: leave out this case, or give the lock the name %q", v.name)
	}
	v.refused(b, "of two processes")
	ctx, cancel := context.WithCancel(v.ctx)
	defer cancel()
	w := v.waits(b, ctx)
	cancel()
	v.within(patience, "Lock whose context has ended", func() { <-w.done })
	v.releases(h, v.ctx)
	v.releases(v.acquires(b, "after the release"), v.ctx)
	v.srv.Advance(aDay)
	if left := v.keys(); len(left) > 0 {
		v.Errorf("left in Redis a day after the last use: %q: with a name for each order or user, memory fills up", left)
	}
}
