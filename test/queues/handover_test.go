package queues

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// eachHanding runs a scenario for each type that keeps its waiters in Redis and hands holds
// over inside a client if it is told to. Leases are so long that nobody looks because one of
// them may be over.
func eachHanding(t *testing.T, scenario func(t *testing.T, h *holder), opts ...rlock.Option) {
	t.Helper()
	eachBounded(t, rlock.WithHandOver(10, time.Hour), scenario, append([]rlock.Option{rlock.WithWatchdogLease(locktest.Patient)}, opts...)...)
}

// releases is how many the client of the holder has sent.
func (h *holder) releases() int { return h.sent("release") + h.sent("release_to") }

// unlock ends a lease, and returns how many releases the client of the holder has sent for it.
func (h *holder) unlock(t *testing.T, l *rlock.Lease) int {
	t.Helper()
	before := h.releases()
	locktest.MustUnlock(t, l)
	return h.releases() - before
}

// handsOver ends a lease, and returns that of the waiter to whom its hold was handed over.
func (h *holder) handsOver(t *testing.T, l *rlock.Lease, to *locktest.Attempt) *rlock.Lease {
	t.Helper()
	if n := h.unlock(t, l); n > 0 {
		t.Fatalf("%d releases for a hand-over", n)
	}
	next := to.Held()
	if next.HoldID() != l.HoldID() || next.Token() <= l.Token() || !next.Deadline().Equal(l.Deadline()) {
		t.Fatalf("hold %s, token %d until %v, was handed over as %s, token %d until %v",
			l.HoldID(), l.Token(), l.Deadline(), next.HoldID(), next.Token(), next.Deadline())
	}
	return next
}

// Those of the client that stand behind its heir get the hold one after the other; not one
// behind whom somebody else stands.
func TestHoldIsHandedOverInTheOrderOfTheQueue(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		third, _ := h.join(t)
		rival := h.rival(t)
		last, _ := h.join(t)
		if n := h.unlock(t, h.held); n != 1 {
			t.Errorf("%d releases", n)
		}
		a := first.Held()
		h.holds(t, a, 4)
		b := h.handsOver(t, a, second)
		c := h.handsOver(t, b, third)
		h.holds(t, c, 4) // as Redis shows it, until the batch ends
		if err := c.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		inner := locktest.MustLockCtx(t, c.Context(bg), h.l)
		locktest.MustUnlock(t, inner)
		if n := h.unlock(t, c); n != 1 {
			t.Errorf("%d releases of a batch", n)
		}
		r := rival.Held()
		if r.Token() <= c.Token() {
			t.Errorf("token %d after %d", r.Token(), c.Token())
		}
		h.holds(t, r, 1)
		locktest.MustUnlock(t, r)
		locktest.MustUnlock(t, last.Held())
		h.free(t)
	})
}

// The release of a batch makes the next waiter of the client the holder, of a new batch.
func TestBatchFollowsABatch(t *testing.T) {
	eachBounded(t, rlock.WithHandOver(1, time.Hour), func(t *testing.T, h *holder) {
		var all []*locktest.Attempt
		for range 6 {
			e, _ := h.join(t)
			all = append(all, e)
		}
		l := h.held
		for i, e := range all {
			if i%2 == 1 {
				l = h.handsOver(t, l, e)
				continue
			}
			if n := h.unlock(t, l); n != 1 {
				t.Errorf("%d releases", n)
			}
			next := e.Held()
			if next.HoldID() == l.HoldID() || next.Token() <= l.Token() {
				t.Fatalf("%s with token %d after %s with token %d", next.HoldID(), next.Token(), l.HoldID(), l.Token())
			}
			l = next
		}
		locktest.MustUnlock(t, l)
		h.free(t)
	})
}

// By default, and when the time of a batch is over, Redis is asked.
func TestHandOverInAQueueIsBounded(t *testing.T) {
	for name, bounds := range map[string]rlock.LockOption{"default": nil, "passes": rlock.WithHandOver(0, time.Hour), "time": rlock.WithHandOver(10, 0)} {
		t.Run(name, func(t *testing.T) {
			eachBounded(t, bounds, func(t *testing.T, h *holder) {
				first, _ := h.join(t)
				second, _ := h.join(t)
				locktest.MustUnlock(t, h.held)
				if n := h.unlock(t, first.Held()); n != 1 {
					t.Errorf("%d releases", n)
				}
				h.holds(t, second.Held(), 0)
				locktest.MustUnlock(t, second.Lease)
				h.free(t)
			})
		})
	}
}

// A waiter that needs a hold of its own, or has left, is not handed one.
func TestWaitersThatAreNotHandedAHold(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		canceled, _ := h.join(t)
		second, _ := h.join(t)
		fixed, id := h.join(t, rlock.WithLease(time.Minute))
		third, _ := h.join(t)
		locktest.MustUnlock(t, h.held)
		a := first.Held()
		looks := h.sent("enter")
		canceled.Cancel()
		<-canceled.Done
		if h.scripts == "fair" { // it may have missed what that one was told, on its own channel
			h.sleeps(t, func() bool { return h.sent("enter") > looks })
		}
		locktest.WantErr(t, canceled.Err, rlock.ErrNotAcquired)
		b := h.handsOver(t, a, second)
		if n := h.unlock(t, b); n != 1 {
			t.Errorf("%d releases", n)
		}
		own := fixed.Held()
		if own.HoldID() != id || time.Until(own.Deadline()) < 30*time.Second {
			t.Errorf("%s until %v, of %s", own.HoldID(), own.Deadline(), id)
		}
		h.holds(t, own, 1)
		if n := h.unlock(t, own); n != 1 {
			t.Errorf("%d releases", n)
		}
		locktest.MustUnlock(t, third.Held())
		h.free(t)
	})
}

// A reply or a request of the release that begins a batch, or ends it, is lost.
func TestReleaseOfABatchWithLostReply(t *testing.T) {
	for name, action := range locktest.LossyActions {
		for nth, which := range []string{"begins", "ends"} {
			t.Run(name+", which "+which+" it", func(t *testing.T) {
				eachHanding(t, func(t *testing.T, h *holder) {
					var all []*locktest.Attempt
					for range 3 {
						e, _ := h.join(t)
						all = append(all, e)
					}
					rival := h.rival(t)
					locktest.OnNth(t, h.proxy, h.scripts+"/release_to", int64(nth+1), action)
					if err := locktest.Ended(h.held.Unlock(bg)); err != nil {
						t.Fatal(err)
					}
					token := h.held.Token()
					for _, e := range append(all, rival) {
						l := e.Held()
						if l.Token() <= token {
							t.Errorf("token %d after %d", l.Token(), token)
						}
						token = l.Token()
						if err := locktest.Ended(l.Unlock(bg)); err != nil {
							t.Fatal(err)
						}
					}
					h.free(t)
				})
			})
		}
	}
}

// The release at the end of a batch has no answer: those who have had the hold leave the queue all
// the same.
func TestReleaseOfABatchWithoutAnAnswer(t *testing.T) {
	for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "did not run": faultproxy.ResetBefore} {
		t.Run(name, func(t *testing.T) {
			eachHanding(t, func(t *testing.T, h *holder) {
				first, _ := h.join(t)
				second, _ := h.join(t)
				rival := h.rival(t)
				locktest.MustUnlock(t, h.held)
				b := h.handsOver(t, first.Held(), second)
				sha := locktest.SHA(h.scripts + "/release_to")
				h.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if cmd.IsScript(sha) {
						return action
					}
					return faultproxy.Pass
				})
				locktest.WantErr(t, b.Unlock(bg), rlock.ErrUnconfirmed, rlock.ErrUnreachable)
				locktest.MustUnlock(t, rival.Held())
				h.free(t)
			}, rlock.WithUnlockTimeout(2*time.Second))
		})
	}
}

// The lock is freed by force while the hold is in its second hands.
func TestHoldOfABatchIsRemoved(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		third, _ := h.join(t)
		rival := h.rival(t)
		locktest.MustUnlock(t, h.held)
		b := h.handsOver(t, first.Held(), second)
		if was, err := h.Open(h.b.NewClient(t), "a").ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		c := h.handsOver(t, b, third)
		locktest.WantErr(t, c.Unlock(bg), rlock.ErrLeaseLost)
		locktest.MustUnlock(t, rival.Held())
		h.free(t)
	})
}

// Redis is away until the lease of the hold is over, in its second hands.
func TestHoldOfABatchExpires(t *testing.T) {
	lease := locktest.Ample(3 * time.Second)
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		rival := h.rival(t)
		locktest.MustUnlock(t, h.held)
		b := h.handsOver(t, first.Held(), second)
		h.proxy.Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.ResetBefore })
		<-b.Done()
		locktest.WantErr(t, b.Err(), rlock.ErrLeaseLost)
		h.proxy.Handle(nil)
		locktest.MustUnlock(t, rival.Held())
		locktest.WantErr(t, b.Unlock(bg), rlock.ErrLeaseLost)
		h.free(t)
	}, rlock.WithWatchdogLease(lease))
}

// The client shuts down while the hold is in its second hands.
func TestShutdownDuringABatch(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		third, _ := h.join(t)
		rival := h.rival(t)
		locktest.MustUnlock(t, h.held)
		b := h.handsOver(t, first.Held(), second)
		done := locktest.ShutDown(bg, h.m.Client)
		<-third.Done
		locktest.WantErr(t, third.Err, rlock.ErrClosed)
		locktest.MustUnlock(t, b)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, rival.Held())
		h.free(t)
	})
}

// Goroutines of two clients and their cancels race. Nobody is in the section beside another,
// tokens grow, and everybody gets in.
func TestCrowdsThatHandHoldsOver(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		clients := []*rlock.Client{h.m.Client, h.b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))}
		var inside, entered, canceled atomic.Int64
		var last int64 // written inside the section
		var wg sync.WaitGroup
		for _, c := range clients {
			l := h.open(c)
			for range 8 {
				wg.Go(func() {
					for range 40 {
						ctx, cancel := context.WithCancel(bg)
						if rand.IntN(4) == 0 {
							time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
						}
						lease, err := l.Lock(ctx)
						if errors.Is(err, context.Canceled) {
							canceled.Add(1)
							cancel()
							continue
						}
						if err != nil {
							t.Error(err)
							cancel()
							return
						}
						if n := inside.Add(1); n != 1 || lease.Token() <= last {
							t.Errorf("%d are inside, token %d after %d", n, lease.Token(), last)
						}
						last = lease.Token()
						entered.Add(1)
						inside.Add(-1)
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
						cancel()
					}
				})
			}
		}
		locktest.MustUnlock(t, h.held)
		wg.Wait()
		t.Logf("%d sections, %d waiters canceled, %d releases of the first client", entered.Load(), canceled.Load(), h.releases())
		h.free(t)
	})
}

// The release that begins a batch is late, and is sent again. The answer of the copy that has done
// the work counts, whatever the other one finds.
func TestReleaseThatBeginsABatchIsSentTwice(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		var sent atomic.Int64
		again := make(chan struct{})
		h.on(func(cmd redis.Cmder, send func() error) error {
			if !locktest.Runs(cmd, h.scripts+"/release_to") {
				return send()
			}
			switch sent.Add(1) {
			case 1:
				err := send()
				<-again
				return err
			case 2:
				close(again)
				time.Sleep(100 * time.Millisecond) // the other one is answered first
			}
			return send()
		})
		locktest.MustUnlock(t, h.held)
		if sent.Load() != 2 {
			t.Errorf("%d releases", sent.Load())
		}
		locktest.MustUnlock(t, first.Held())
		locktest.MustUnlock(t, second.Held())
		h.free(t)
	})
}

// A writer that reads on when it unlocks keeps other writers out, those of its client too.
func TestWriterThatReadsOnDoesNotHandItsHoldOver(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		if h.Name != "write" {
			return
		}
		first, _ := h.join(t)
		second, _ := h.join(t)
		locktest.MustUnlock(t, h.held)
		a := first.Held()
		reader := locktest.MustLockCtx(t, a.Context(bg), locktest.FairRead(h.m.Client, "a"))
		if n := h.unlock(t, a); n != 1 {
			t.Errorf("%d releases", n)
		}
		select {
		case <-second.Done:
			t.Fatal("a writer has come in beside a reader")
		case <-time.After(50 * time.Millisecond):
		}
		locktest.MustUnlock(t, reader)
		locktest.MustUnlock(t, second.Held())
		h.free(t)
	})
}

// A writer's Unlock races with a read that it begins.
func TestReadUnderAWriterRacesWithItsHandOver(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		if h.Name != "write" {
			return
		}
		reader := locktest.FairRead(h.m.Client, "a")
		under := 0
		for i := range 30 {
			first, _ := h.join(t)
			second, _ := h.join(t)
			locktest.MustUnlock(t, h.held)
			a := first.Held()
			ctx := context.WithoutCancel(a.Context(bg))
			reads := make(chan *rlock.Lease, 1)
			go func() {
				l, err := reader.Lock(ctx)
				if err != nil {
					t.Error(err)
				}
				reads <- l
			}()
			time.Sleep(time.Duration(i) * 10 * time.Microsecond)
			locktest.MustUnlock(t, a)
			var r *rlock.Lease
			select {
			case r = <-reads: // under the writer
				under++
				select {
				case <-second.Done:
					t.Fatal("a writer has come in beside a reader")
				case <-time.After(time.Millisecond):
				}
				locktest.MustUnlock(t, r)
				locktest.MustUnlock(t, second.Held())
			case <-second.Done:
				select {
				case <-reads:
					t.Fatal("a reader has come in beside a writer")
				case <-time.After(time.Millisecond):
				}
				locktest.MustUnlock(t, second.Held())
				locktest.MustUnlock(t, <-reads)
			}
			h.held = locktest.MustLock(t, h.l)
		}
		t.Logf("%d of 30 readers came in under the writer", under)
		locktest.MustUnlock(t, h.held)
		h.free(t)
	})
}

// A Lock of the same name waits in the client too. The hold goes to the next in the queue.
func TestHoldOfAFairLockIsNotHandedOverToALock(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		if h.Name != "fair" {
			return
		}
		first, _ := h.join(t)
		second, _ := h.join(t)
		rival := h.rival(t)
		plain := locktest.Begin(t, bg, h.m.Client.NewLock("a"))
		sha := locktest.SHA("lock/enter")
		h.sleeps(t, func() bool { return h.proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(sha) }) >= 2 })
		locktest.MustUnlock(t, h.held)
		a := first.Held()
		h.sleeps(t, func() bool { return true })
		b := h.handsOver(t, a, second)
		locktest.WantErr(t, plain.GiveUp(), rlock.ErrNotAcquired)
		locktest.MustUnlock(t, b)
		locktest.MustUnlock(t, rival.Held())
		h.free(t)
	})
}

// A waiter is stopped while a hold is handed over to it, until the lease is over. It waits again, and
// what ends its former place late does not end its new hold.
func TestHoldIsHandedOverTooLate(t *testing.T) {
	lease := locktest.Ample(3 * time.Second)
	eachHanding(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		locktest.MustUnlock(t, h.held)
		a := first.Held()
		stop := func(point string) {
			if point == "passed" {
				h.gate.Store(nil)
				time.Sleep(time.Until(a.Deadline()) + 100*time.Millisecond)
			}
		}
		h.gate.Store(&stop)
		sha := locktest.SHA(h.scripts + "/abandon")
		h.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(sha) {
				return faultproxy.ResetBefore
			}
			return faultproxy.Pass
		})
		looks := h.sent("enter")
		locktest.MustUnlock(t, a)
		locktest.Eventually(t, "it looks again", func() bool { return h.sent("enter") > looks })
		abandoned := h.sent("abandon")
		h.proxy.Handle(nil)
		b := second.Held()
		h.sleeps(t, func() bool { return h.sent("abandon") > abandoned })
		if err := b.Extend(bg, lease); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, b)
		h.free(t)
	}, rlock.WithWatchdogLease(lease))
}

// A waiter is stopped until its hold is over, and waits again. Its next hold has no batch: nobody
// drew tokens for one.
func TestBatchIsOfOneGrant(t *testing.T) {
	eachHanding(t, func(t *testing.T, h *holder) {
		if h.Name != "priority" {
			return
		}
		l := h.l
		h.l = l.(*rlock.PriorityLock).At(rlock.MaxPriority).(locktest.AnyLock)
		urgent, _ := h.join(t)
		h.l = l
		second, _ := h.join(t)
		third, _ := h.join(t)
		goOn := make(chan struct{})
		stop := func(point string) {
			if point == "passed" {
				h.gate.Store(nil)
				<-goOn
			}
		}
		h.gate.Store(&stop)
		locktest.MustUnlock(t, h.held)
		b := second.Held() // when the hold of the other one was over
		looks := h.sent("enter")
		close(goOn)
		h.sleeps(t, func() bool { return h.sent("enter") > looks+1 })
		locktest.MustUnlock(t, b)
		if n := h.unlock(t, urgent.Held()); n != 1 {
			t.Errorf("%d releases", n)
		}
		locktest.MustUnlock(t, third.Held())
		h.free(t)
	}, rlock.WithWatchdogLease(locktest.Ample(time.Second)))
}
