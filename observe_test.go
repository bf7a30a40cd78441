package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestObserverGetsEachEvent(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		r := &locktest.Recorder{}
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithObserver(r))
		l := c.NewLock("a")
		last := func() rlock.AcquireEvent { return r.Acquires[len(r.Acquires)-1] }

		outer := locktest.MustLock(t, l)
		if e := last(); e.Lock != "a" || e.HoldID != outer.HoldID() || e.Token != outer.Token() || e.Attempts != 1 || e.Reentry || e.Err != nil || e.Wait <= 0 {
			t.Errorf("first entry: %+v", e)
		}
		inner := locktest.MustLockCtx(t, outer.Context(bg), l)
		if e := last(); !e.Reentry || e.HoldID != outer.HoldID() || e.Err != nil {
			t.Errorf("re-entry: %+v", e)
		}
		_, err := l.TryLock(bg)
		if e := last(); e.Err == nil || e.Err.Error() != err.Error() || e.HoldID != "" || e.Token != 0 {
			t.Errorf("refused: %+v", e)
		}
		if r.Contentions != 0 {
			t.Errorf("TryLock does not wait, but is told as contended")
		}
		const wait = time.Second // long enough for the answer to a look
		if _, err = l.Lock(bg, rlock.WithWait(wait)); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if e := last(); !errors.Is(e.Err, rlock.ErrNotAcquired) || e.Wait < wait || r.Contentions != 1 {
			t.Errorf("waited in vain: %+v, contended %d", e, r.Contentions)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)
		if len(r.Unlocks) != 2 || r.Unlocks[1].HoldID != outer.HoldID() || r.Unlocks[1].Token != outer.Token() || r.Unlocks[1].Err != nil || r.Unlocks[1].Held <= 0 {
			t.Errorf("unlocked: %+v", r.Unlocks)
		}

		lost := locktest.MustLock(t, l)
		rdb.Del(bg, "a")
		locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost)
		if e := r.Unlocks[2]; !errors.Is(e.Err, rlock.ErrRemoved) {
			t.Errorf("unlock of what was lost: %+v", e)
		}
		fixed := locktest.MustLock(t, l, rlock.WithLease(locktest.Ample(200*time.Millisecond)))
		<-fixed.Done()
		locktest.Eventually(t, "both losses are told", func() bool {
			r.Mu.Lock()
			defer r.Mu.Unlock()
			return len(r.Losses) == 2
		})
		r.Mu.Lock()
		defer r.Mu.Unlock()
		if e := r.Losses[0]; e.HoldID != lost.HoldID() || e.Token != lost.Token() || !errors.Is(e.Cause, rlock.ErrRemoved) {
			t.Errorf("removed: %+v", e)
		}
		if e := r.Losses[1]; e.HoldID != fixed.HoldID() || !errors.Is(e.Cause, rlock.ErrExpired) || e.Held <= 0 {
			t.Errorf("expired: %+v", e)
		}
		if r.Starts != len(r.Acquires) {
			t.Errorf("%d acquires began, %d ended", r.Starts, len(r.Acquires))
		}
	})
}

// contended counts acquires that found the lock held.
type contended struct {
	locktest.Ignoring
	n atomic.Int64
}

func (o *contended) Contended(context.Context, rlock.ContentionEvent) { o.n.Add(1) }

func TestContendedIsReportedOnce(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &contended{}
	mine := b.NewClient(t).NewPriorityLock("a")
	theirs := locktest.NewClient(t, b.Client(t), rlock.WithObserver(o)).NewPriorityLock("a")
	wait := func() {
		lease := locktest.MustLock(t, mine)
		next := locktest.Begin(t, bg, theirs)
		locktest.Eventually(t, "it waits", func() bool { return o.n.Load() > 0 })
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next.Held())
	}
	wait()
	o.n.Store(0)
	locktest.MustUnlock(t, locktest.MustLock(t, theirs))
	if n := o.n.Load(); n != 0 {
		t.Errorf("%d times for a lock that was free", n)
	}
	wait()
	if n := o.n.Load(); n != 1 {
		t.Errorf("%d times for one wait", n)
	}
}

// seen keeps what an Observer is told, as text.
type seen struct {
	mu     sync.Mutex // guards all and starts
	all    []string
	starts int
	wait   chan struct{} // AcquireEnd waits for it
	ending atomic.Int32  // calls of AcquireEnd
}

func (o *seen) note(ctx context.Context, what string, e rlock.Event, more ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	of, _ := ctx.Value(seenKey{}).(int)
	o.all = append(o.all, strings.TrimSpace(fmt.Sprintf("%d %s %s %s%s %d %s", of, what, e.Lock, e.Type, e.Side, e.Entry, strings.TrimSpace(fmt.Sprintln(more...)))))
}

type seenKey struct{}

func (o *seen) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	starts := o.starts + 1
	o.starts = starts
	o.all = append(o.all, fmt.Sprintf("%d start %s %s%s", starts, e.Lock, e.Type, e.Side))
	return context.WithValue(ctx, seenKey{}, starts)
}
func (o *seen) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	o.ending.Add(1)
	if o.wait != nil {
		<-o.wait
	}
	o.note(ctx, "end", e.Event, e.Contended, e.HandedOver, e.Err == nil)
}
func (o *seen) Lost(ctx context.Context, e rlock.LossEvent) {
	cause := "otherwise"
	switch {
	case errors.Is(e.Cause, rlock.ErrRemoved):
		cause = "removed"
	case errors.Is(e.Cause, rlock.ErrExpired):
		cause = "expired"
	}
	o.note(ctx, "lost", e.Event, cause)
}
func (o *seen) Contended(ctx context.Context, e rlock.ContentionEvent) {
	o.note(ctx, "contended", e.Event)
}
func (o *seen) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	o.note(ctx, "unlocked", e.Event, e.Ends, e.HandedOver, e.Err == nil)
}

// sort is for events whose order is not certain.
func (o *seen) sort() {
	o.mu.Lock()
	defer o.mu.Unlock()
	slices.Sort(o.all)
}

// want waits until this was told, in this order.
func (o *seen) want(t *testing.T, lines ...string) {
	t.Helper()
	deadline := time.Now().Add(locktest.Patience)
	for {
		o.mu.Lock()
		got := slices.Clone(o.all)
		o.mu.Unlock()
		if slices.Equal(got, lines) {
			o.mu.Lock()
			o.all = nil
			o.mu.Unlock()
			return
		}
		if len(got) >= len(lines) || time.Now().After(deadline) {
			t.Fatalf("told:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
		}
		time.Sleep(time.Millisecond)
	}
}

// A line is the number of the acquire, the event, the lock, its type and side, the entry, and for an
// end: contended, handed over, no error; for an Unlock: ends, hands over, no error.
func TestObserverCanTellEntriesAndHoldsApart(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &seen{}
	var clock locktest.Clock
	c := b.NewClient(t, rlock.WithObserver(o), clock.Option())
	l := c.NewLock("a")

	outer := locktest.MustLock(t, l)
	inner := locktest.MustLockCtx(t, outer.Context(bg), l)
	locktest.MustUnlock(t, outer)
	again := locktest.MustLockCtx(t, inner.Context(bg), l)
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, again)
	locktest.WantErr(t, again.Unlock(bg), rlock.ErrUnlocked)
	o.want(t, "1 start a Lock", "1 end a Lock 1 false false true", "2 start a Lock", "2 end a Lock 2 false false true",
		"1 unlocked a Lock 1 false false true", "3 start a Lock", "3 end a Lock 3 false false true",
		"1 unlocked a Lock 2 false false true", "1 unlocked a Lock 3 true false true")

	// A loss ends it, not the Unlock that finds it.
	removed := locktest.MustLock(t, l)
	b.Client(t).Del(bg, "a")
	_ = removed.Unlock(bg)
	locktest.Eventually(t, "the loss is told", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.all) == 4
	})
	o.sort()
	o.want(t, "4 end a Lock 1 false false true", "4 lost a Lock 0 removed", "4 start a Lock", "4 unlocked a Lock 1 false false false")
	expired := locktest.MustLock(t, l, rlock.WithLease(time.Minute))
	clock.Forward(time.Minute)
	<-expired.Done()
	locktest.Eventually(t, "the loss is told", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.all) == 3
	})
	_ = expired.Unlock(bg)
	o.want(t, "5 start a Lock", "5 end a Lock 1 false false true", "5 lost a Lock 0 expired", "5 unlocked a Lock 1 false false false")

	// Refused, in vain, by arguments.
	theirs := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	_, err := l.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	ctx, cancel := context.WithCancel(bg)
	next := locktest.Begin(t, ctx, l)
	locktest.Eventually(t, "it waits", func() bool { return locktest.Subscribers(t, b.Client(t), "a") == 1 })
	cancel()
	<-next.Done
	_, err = l.Lock(bg, rlock.WithLease(-1))
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	o.want(t, "6 start a Lock", "6 end a Lock 0 false false false", "7 start a Lock", "7 contended a Lock 0", "7 end a Lock 0 true false false")
	locktest.MustUnlock(t, theirs)

	// A writer that reads: two holds of one id.
	rw := c.NewReadWriteLock("rw")
	writes := locktest.MustLock(t, rw.Writer)
	reads := locktest.MustLockCtx(t, writes.Context(bg), rw.Reader)
	locktest.MustUnlock(t, writes)
	locktest.MustUnlock(t, reads)
	o.want(t, "8 start rw ReadWriteLockwrite", "8 end rw ReadWriteLockwrite 1 false false true",
		"9 start rw ReadWriteLockread", "9 end rw ReadWriteLockread 1 false false true",
		"8 unlocked rw ReadWriteLockwrite 1 true false true", "9 unlocked rw ReadWriteLockread 1 true false true")
}

// What happens to a hold while AcquireEnd takes its time is told afterwards.
func TestEventsOfAHoldFollowItsAcquireEnd(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &seen{wait: make(chan struct{})}
	var clock locktest.Clock
	log := &locktest.LogLines{}
	c := b.NewClient(t, rlock.WithObserver(o), clock.Option(), rlock.WithLogger(log.Logger()))
	first := locktest.Begin(t, bg, c.NewLock("a"), rlock.WithLease(time.Minute))
	locktest.Eventually(t, "it is granted", func() bool { return o.ending.Load() == 1 })
	second := locktest.Begin(t, bg, c.NewLock("b"), rlock.WithLease(time.Minute))
	locktest.Eventually(t, "it is granted", func() bool { return o.ending.Load() == 2 })
	clock.Forward(time.Minute)        // both leases end
	time.Sleep(20 * time.Millisecond) // for a wrong event
	o.want(t, "1 start a Lock", "2 start b Lock")
	close(o.wait)
	<-first.Done
	<-second.Done
	locktest.Eventually(t, "both losses are told", func() bool { return log.With("lease lost") == 2 })
	o.sort()
	o.want(t, "1 end a Lock 1 false false true", "1 lost a Lock 0 expired", "2 end b Lock 1 false false true", "2 lost b Lock 0 expired")
}

// A hand-over ends one hold and begins another, of the same id.
func TestObserverGetsAHandOver(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &seen{}
	g := &locktest.Gauges{}
	l := b.NewClient(t, rlock.WithObserver(twoObservers{g, o})).NewLock("a", rlock.WithHandOver(30, time.Hour))
	handedOver := func() (ends, begins int) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, line := range o.all {
			if strings.HasSuffix(line, "unlocked a Lock 1 true true true") {
				ends++
			}
			if strings.HasSuffix(line, "end a Lock 1 true true true") {
				begins++
			}
		}
		return ends, begins
	}
	locktest.Eventually(t, "a hold was handed over", func() bool { // to one that sleeps by then
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() { locktest.Pair(t, l) })
		}
		wg.Wait()
		ends, begins := handedOver()
		if ends != begins {
			t.Fatalf("%d holds were handed over, and %d taken", ends, begins)
		}
		return ends > 0
	})
	if acquiring, waiting, held, _ := g.Now(); acquiring+waiting+held != 0 || len(g.Faults()) > 0 {
		t.Errorf("%d acquire, %d wait, %d hold, %s", acquiring, waiting, held, g.Faults())
	}
}

// twoObservers tells two observers.
type twoObservers struct {
	*locktest.Gauges
	to *seen
}

func (o twoObservers) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	return o.to.AcquireStart(o.Gauges.AcquireStart(ctx, e), e)
}
func (o twoObservers) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	o.Gauges.AcquireEnd(ctx, e)
	o.to.AcquireEnd(ctx, e)
}
func (o twoObservers) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	o.Gauges.Unlocked(ctx, e)
	o.to.Unlocked(ctx, e)
}

// Everything that can be acquired is told, with its type.
func TestObserverGetsEventsOfEachType(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &seen{}
	c := b.NewClient(t, rlock.WithObserver(o))
	red := locktest.NewRedLock(t, "a", []*rlock.Client{c, locktest.OnMiniredis(t).NewClient(t), locktest.OnMiniredis(t).NewClient(t)}, rlock.WithNodeTimeout(5*time.Second))
	fair := c.NewFairReadWriteLock("rw")
	n := 0
	for name, l := range map[string]rlock.Locker{
		"a Lock": c.NewLock("a"), "a FairLock": c.NewFairLock("a"), "a SpinLock": c.NewSpinLock("a"), "a FencedLock": c.NewFencedLock("a"),
		"p PriorityLock": c.NewPriorityLock("p"), "a RedLock": red, "rw FairReadWriteLockread": fair.Reader, "rw FairReadWriteLockwrite": fair.Writer,
	} {
		locktest.Pair(t, l)
		n++
		o.want(t, fmt.Sprint(n, " start ", name), fmt.Sprint(n, " end ", name, " 1 false false true"), fmt.Sprint(n, " unlocked ", name, " 1 true false true"))
	}
	o.starts = 0

	for _, opts := range [][]rlock.PermitSemaphoreOption{nil, {rlock.WithFairness()}} {
		permits := c.NewPermitSemaphore(fmt.Sprint(len(opts)), opts...)
		_, err := permits.TrySetPermits(bg, 3)
		lease, err2 := permits.Acquire(bg, 2)
		if err = errors.Join(err, err2, lease.Unlock(bg)); err != nil {
			t.Fatal(err)
		}
	}
	o.want(t, "1 start 0 PermitSemaphore", "1 end 0 PermitSemaphore 1 false false true", "1 unlocked 0 PermitSemaphore 1 true false true",
		"2 start 1 PermitSemaphore", "2 end 1 PermitSemaphore 1 false false true", "2 unlocked 1 PermitSemaphore 1 true false true")

	s := c.NewSemaphore("s")
	_, err := s.TrySetPermits(bg, 3)
	if err = errors.Join(err, s.Acquire(bg, 2), s.Release(bg, 2), c.NewCountDownLatch("latch").Wait(bg), c.NewBarrier("barrier").Wait(bg)); err != nil {
		t.Fatal(err)
	}
	o.want(t, "3 start s Semaphore", "3 end s Semaphore 0 false false true", "0 unlocked s Semaphore 0 false false true",
		"4 start latch CountDownLatch", "4 end latch CountDownLatch 0 false false true",
		"5 start barrier Barrier", "5 end barrier Barrier 0 false false true")

	double := c.NewDoubleBarrier("double", 1)
	member, err := double.Enter(bg)
	if err = errors.Join(err, double.Leave(bg, member)); err != nil {
		t.Fatal(err)
	}
	o.want(t, "6 start double DoubleBarrier", "6 end double DoubleBarrier 1 false false true",
		"6 unlocked double DoubleBarrier 1 true false true", "7 start double DoubleBarrier", "7 end double DoubleBarrier 0 false false true")

	once := c.NewOnce("once", time.Hour)
	for range 2 { // the second finds a result, which is no error
		if _, _, err := once.Do(bg, func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	o.want(t, "8 start once Once", "8 end once Once 1 false false true", "8 unlocked once Once 1 true false true",
		"9 start once Once", "9 end once Once 0 false false true")
	cron, tick := c.NewCronJob("cron"), time.Now().Truncate(time.Second)
	for range 2 { // the second finds that the first has run, which is no error
		if _, err := cron.Do(bg, tick, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	o.want(t, "10 start cron CronJob", "10 end cron CronJob 1 false false true", "10 unlocked cron CronJob 1 true false true",
		"11 start cron CronJob", "11 end cron CronJob 0 false false true")
	lead, err := c.NewElection("job").Campaign(bg, "")
	if err = errors.Join(err, lead.Unlock(bg)); err != nil {
		t.Fatal(err)
	}
	o.want(t, "12 start job Election", "12 end job Election 1 false false true", "12 unlocked job Election 1 true false true")

	locktest.Pair(t, locktest.NewMultiLock(t, c.NewLock("{m}a"), c.NewLock("{m}b")))
	o.sort()
	o.want(t, "13 end {m}a Lock 1 false false true", "13 start {m}a Lock", "13 unlocked {m}a Lock 1 true false true",
		"14 end {m}b Lock 1 false false true", "14 start {m}b Lock", "14 unlocked {m}b Lock 1 true false true")
}

// troubles notes renewals and retries.
type troubles struct {
	locktest.Ignoring
	renewals chan rlock.RenewalEvent
	retries  chan rlock.RetryEvent
}

func (o *troubles) Renewed(_ context.Context, e rlock.RenewalEvent) { o.renewals <- e }
func (o *troubles) Retry(_ context.Context, e rlock.RetryEvent)     { o.retries <- e }

// A renewal says how much of the lease was left, a failed one too; and a retry names its lock.
func TestRenewalsAndRetriesNameTheirLock(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &troubles{renewals: make(chan rlock.RenewalEvent, 1000), retries: make(chan rlock.RetryEvent, 1000)}
	var clock locktest.Clock
	c := b.NewClient(t, rlock.WithObserver(o), clock.Option(), rlock.WithCommandTimeout(2*time.Second))
	lease := locktest.MustLock(t, c.NewFairLock("a"))
	renewed := func() rlock.RenewalEvent {
		t.Helper()
		select {
		case e := <-o.renewals:
			if e.Lock != "a" || e.Type != "FairLock" || e.HoldID != lease.HoldID() || e.Token != lease.Token() || e.Took < 0 {
				t.Errorf("%+v", e)
			}
			return e
		case <-time.After(locktest.Patience):
			t.Fatal("no renewal")
			return rlock.RenewalEvent{}
		}
	}
	clock.Forward(locktest.Lease / 2)
	if e := renewed(); e.Err != nil || e.Left <= 0 || e.Left > locktest.Lease/2 {
		t.Errorf("%+v", e)
	}
	b.Mini.SetError("LOADING Redis is loading the dataset in memory")
	clock.Forward(locktest.Lease / 2)
	if e := renewed(); e.Err == nil || !strings.Contains(e.Err.Error(), "LOADING") || e.Left > locktest.Lease/2 {
		t.Errorf("%+v", e)
	}
	_, _ = c.NewReadWriteLock("rw").Reader.TryLock(bg)
	_, _ = locktest.NewMultiLock(t, c.NewLock("{m}a"), c.NewLock("{m}b")).TryLock(bg)
	b.Mini.SetError("")
	named, batches := 0, 0
	for len(o.retries) > 0 {
		switch e := <-o.retries; {
		case e.Operation == "renew":
			t.Errorf("a renewal: %+v", e)
		case e.Locks == 1 && e.Lock == "rw" && e.Type == "ReadWriteLock" && e.Side == "read" && e.Err != nil:
			named++
		case e.Locks == 2 && e.Lock == "":
			batches++
		case e.Locks != 1 || e.Lock == "":
			t.Errorf("%+v", e)
		}
	}
	if named == 0 || batches == 0 {
		t.Errorf("%d retries of a reader, %d of two locks at once", named, batches)
	}
	locktest.MustUnlock(t, lease)
}

func TestObserverGetsTheHolderThatRefusedAnAcquire(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	r := &locktest.Recorder{}
	theirs := b.NewClient(t).NewLock("a")
	ours := b.NewClient(t, rlock.WithObserver(r)).NewLock("a")
	of := func(holdID string) rlock.AcquireEvent {
		t.Helper()
		r.Mu.Lock()
		defer r.Mu.Unlock()
		for _, e := range r.Acquires {
			if e.HoldID == holdID {
				return e
			}
		}
		t.Fatalf("no AcquireEnd of %q", holdID)
		return rlock.AcquireEvent{}
	}

	before := locktest.MustLock(t, theirs)
	_, err := ours.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	if e := of(""); e.HolderID != before.HoldID() {
		t.Errorf("refused: kept out by %q, want %q", e.HolderID, before.HoldID())
	}
	// The head of a line has looked; the one behind it has not.
	waits := func(n int) {
		locktest.Eventually(t, "it stands in line", func() bool {
			s, err := ours.State(bg)
			return err == nil && s.Waiters == n
		})
	}
	first := locktest.Begin(t, bg, ours)
	waits(1)
	locktest.Eventually(t, "it listens", func() bool { return locktest.Subscribers(t, b.Client(t), "a") == 1 })
	second := locktest.Begin(t, bg, ours)
	waits(2)
	locktest.MustUnlock(t, before)
	got := [2]*rlock.Lease{first.Held()}
	locktest.MustUnlock(t, got[0])
	got[1] = second.Held()
	if e := of(got[0].HoldID()); e.HolderID != before.HoldID() {
		t.Errorf("the first was kept out by %q, want %q", e.HolderID, before.HoldID())
	}
	locktest.MustUnlock(t, got[1])
	r.Mu.Lock()
	if e := r.Acquires[len(r.Acquires)-1]; e.HolderID != got[0].HoldID() || !e.Contended {
		t.Errorf("the second was kept out by %q, want %q: %+v", e.HolderID, got[0].HoldID(), e)
	}
	r.Mu.Unlock()
	locktest.MustUnlock(t, locktest.MustLock(t, ours))
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if e := r.Acquires[len(r.Acquires)-1]; e.HolderID != "" {
		t.Errorf("nobody held it, but %q kept it out", e.HolderID)
	}
}
