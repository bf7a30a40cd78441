package timers

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// unservedTimers are those of a client of a server that is not there.
func unservedTimers(t *testing.T) *Timers {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	d, err := wire.Open(rdb, wire.Config{Clock: seam.SystemClock{}, CommandTimeout: time.Second, UnlockTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w := New(Config{Env: &seam.Env{Clock: seam.SystemClock{}}, Timeline: clock.NewTimeline(seam.SystemClock{}), Wire: d})
	t.Cleanup(func() {
		w.Close()
		d.Stop()
	})
	return w
}

// looked is a task that is due now and then, with nothing to do.
type looked struct {
	Entry
	look func()
}

func (d *looked) Due(now clock.Instant, _ time.Duration) (Do, clock.Instant) {
	d.look()
	return Do{}, now.Add(seam.FarAway)
}

func (d *looked) Answered(Do, clock.Instant, protocol.Result[protocol.Kept]) clock.Instant {
	return 0
}
func (d *looked) Drain() {}

// What has ended is forgotten, however many were due at once before.
func TestWhatHasEndedIsForgotten(t *testing.T) {
	const tasks = 5_000
	w := unservedTimers(t)
	var freed, looks atomic.Int32
	func() {
		var all []*looked
		for range tasks {
			d := &looked{look: func() { looks.Add(1) }}
			runtime.AddCleanup(d, func(int) { freed.Add(1) }, 0)
			all = append(all, d)
			d.Task = d
			w.Add(&d.Entry, w.Now())
		}
		for end := time.Now().Add(10 * time.Second); looks.Load() < tasks; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d of %d were called", looks.Load(), tasks)
			}
		}
		for _, d := range all {
			w.Remove(&d.Entry)
		}
	}()
	if !w.Idle() {
		t.Error("something is left")
	}
	for end := time.Now().Add(10 * time.Second); freed.Load() < tasks && time.Now().Before(end); {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if n := freed.Load(); n < tasks {
		t.Errorf("%d of %d that have ended are kept", tasks-n, tasks)
	}
}

// What is hurried is called, although it has found out at the same time that there is nothing to do.
func TestHurriedWhileItIsCalled(t *testing.T) {
	w := unservedTimers(t)
	d, looks := &looked{}, make(chan struct{}, 2)
	once := false
	d.look = func() {
		select {
		case looks <- struct{}{}:
		default:
		}
		if !once {
			once = true
			w.Hurry(&d.Entry)
		}
	}
	d.Task = d
	w.Add(&d.Entry, w.Now())
	for range 2 {
		select {
		case <-looks:
		case <-time.After(10 * time.Second):
			t.Fatal("it is not called again")
		}
	}
}

// A task that was removed before it was added does not begin; nobody waits for one in the background.
func TestRemovedAndBackgroundTasksDoNotDelayIdle(t *testing.T) {
	w := unservedTimers(t)
	early, background := &looked{look: func() { t.Error("called") }}, &looked{look: func() {}}
	w.Remove(&early.Entry)
	early.Task = early
	w.Add(&early.Entry, w.Now())
	background.Task = background
	w.AddBackground(&background.Entry)
	w.Hurry(&background.Entry)
	if !w.Idle() {
		t.Error("something is waited for")
	}
	if left := w.Close(); len(left) > 0 {
		t.Errorf("%d are left undone", len(left))
	}
}

// endOfHold is a task that ends a hold.
type endOfHold struct{}

func (endOfHold) Do(context.Context, time.Duration) (r protocol.Result[protocol.Kept]) { return r }
func (endOfHold) Name() string                                                         { return "end" }
func (endOfHold) OfQuorum() bool                                                       { return false }
func (endOfHold) Send(protocol.Dispatch)                                               {}

// Clean-ups that an outage has held up come at most a thousand in a second, and none is
// left out. One that comes alone later does not wait.
func TestHeldUpCleanUpsTakeTurns(t *testing.T) {
	const n = 5_000
	var s CleanUps
	now := clock.Instant(time.Hour)
	turns := map[clock.Instant]int{}
	for range n {
		turns[s.turnAfter(now)]++
	}
	for at, many := range turns {
		if many > wire.RoundSize || at.Before(now) || at.Sub(now)%turnEvery != 0 || at.Sub(now) > n*time.Millisecond {
			t.Errorf("%d after %v", many, at.Sub(now))
		}
	}
	if later := now.Add(time.Minute); s.turnAfter(later) != later {
		t.Error("one that comes alone waits")
	}
}

// A clean-up that was held up is sent in its turn, once for each copy that is not answered.
func TestHeldUpCleanUpIsSentInItsTurn(t *testing.T) {
	w := unservedTimers(t)
	s := NewCleanUps(CleanUpsConfig{Wire: w.Wire, Timers: w})
	now := w.Now()
	u := &cleanUp{cleanUps: s, task: endOfHold{}, giveUpAt: now.Add(time.Hour), finished: make(chan struct{}), pause: time.Second}
	for i, held := range []bool{false, true, true} {
		u.wasHeldUp = held
		if held {
			for range wire.RoundSize {
				s.turnAfter(now)
			}
			for range 2 {
				if do, next := u.Due(now, 0); do.Task != nil || next != now.Add(turnEvery) {
					t.Fatalf("copy %d: %v, due after %v", i, do.Task, next.Sub(now))
				}
			}
			now = now.Add(turnEvery)
		}
		do, next := u.Due(now, 0)
		if do.Task == nil {
			t.Fatalf("copy %d: not sent", i)
		}
		now, u.copies = next, 0 // it was answered
	}
}
