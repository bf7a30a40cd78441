package counting

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// shows checks how many permits there are and how many are free, and that nothing else is known.
func shows(t testing.TB, s *rlock.Semaphore, permits, free int) {
	t.Helper()
	is(t, rlock.SemaphoreState{Set: true, Known: true, Permits: permits, Available: free})(s.State(bg))
}

// A second copy of a SetPermits that comes when others have changed the number changes nothing,
// and it does not matter which reply is lost.
func TestSetPermitsSetsOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore/set", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		f := newFaulty(t, b)
		is(t, true)(f.plain.s.TrySetPermits(bg, 10))
		ok(t, f.plain.s.Acquire(bg, 4))
		locktest.OnNth(t, f.proxy, "semaphore/set", 1, action)
		ok(t, f.s.SetPermits(bg, 20))
		shows(t, f.plain.s, 20, 16)
		ok(t, f.plain.s.SetPermits(bg, 7))
		ok(t, f.Shutdown(bg))
		f.proxy.Release()
		shows(t, f.plain.s, 7, 3)
	})
}

// So it is with Delete: its second copy does not delete what was set anew.
func TestDeleteDeletesOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore/delete", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		f := newFaulty(t, b)
		is(t, true)(f.plain.s.TrySetPermits(bg, 10))
		locktest.OnNth(t, f.proxy, "semaphore/delete", 1, action)
		is(t, true)(f.s.Delete(bg))
		is(t, true)(f.plain.s.TrySetPermits(bg, 3))
		ok(t, f.Shutdown(bg))
		f.proxy.Release()
		shows(t, f.plain.s, 3, 3)
	})
}

// A SetPermits or Delete that was given up is done or not, but a copy that comes later does
// nothing.
func TestLateSetAndDeleteDoNothing(t *testing.T) {
	t.Parallel()
	for script, do := range map[string]func(ctx context.Context, s *rlock.Semaphore) error{
		"semaphore/set":    func(ctx context.Context, s *rlock.Semaphore) error { return s.SetPermits(ctx, 20) },
		"semaphore/delete": func(ctx context.Context, s *rlock.Semaphore) error { _, err := s.Delete(ctx); return err },
	} {
		locktest.Beside(t, script, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				f := newFaulty(t, b)
				is(t, true)(f.plain.s.TrySetPermits(bg, 10))
				ctx, cancel := context.WithCancel(bg)
				sha := locktest.SHA(script)
				f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if !c.IsScript(sha) {
						return faultproxy.Pass
					}
					time.AfterFunc(50*time.Millisecond, cancel)
					return faultproxy.Hold
				})
				locktest.WantErr(t, do(ctx, f.s), context.Canceled)
				f.proxy.Handle(nil)
				ok(t, f.Shutdown(bg)) // waits for the seal
				if f.proxy.Release() == 0 {
					t.Fatal("no late copy")
				}
				shows(t, f.plain.s, 10, 10)
			})
		})
	}
}

// An AddPermits that has failed is undone, but not out of a number that was set since: that
// number holds, whatever there was before.
func TestSetPermitsMakesUpForAnAdditionThatIsUndoneLater(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"added": 10, "made": 0} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				f := newFaulty(t, b)
				if before > 0 {
					is(t, true)(f.plain.s.TrySetPermits(bg, before))
				}
				add, undo := locktest.SHA("semaphore/add"), locktest.SHA("semaphore/undo")
				ctx, cancel := context.WithCancel(bg)
				f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					switch {
					case c.IsScript(add):
						time.AfterFunc(50*time.Millisecond, cancel)
						return faultproxy.SwallowReply
					case c.IsScript(undo):
						return faultproxy.Hold
					}
					return faultproxy.Pass
				})
				locktest.WantErr(t, f.s.AddPermits(ctx, 5), context.Canceled)
				soon(t, before+5, f.plain.s.Available)
				for _, n := range []int{before + 5, 20} { // also the number that there is
					ok(t, f.plain.s.SetPermits(bg, n))
				}
				locktest.Eventually(t, "it is to be undone", func() bool { return f.proxy.Held() > 0 })
				f.proxy.Handle(nil)
				f.proxy.Release()
				ok(t, f.Shutdown(bg))
				shows(t, f.plain.s, 20, 20)
				ok(t, f.plain.s.AddPermits(bg, 2))
				shows(t, f.plain.s, 22, 22)
			})
		})
	}
}

// An acquire, a drain and an addition before or after it are undone as ever.
func TestUndoBeforeAndAfterSetPermits(t *testing.T) {
	t.Parallel()
	for script, op := range givenUp {
		locktest.Beside(t, script, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				f := newFaulty(t, b)
				ok(t, f.plain.s.SetPermits(bg, 9))
				ok(t, f.plain.s.SetPermits(bg, 5))
				ctx, cancel := context.WithCancel(bg)
				sha := locktest.SHA(script)
				f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if !c.IsScript(sha) {
						return faultproxy.Pass
					}
					time.AfterFunc(50*time.Millisecond, cancel)
					return faultproxy.SwallowReply
				})
				locktest.WantErr(t, op.do(ctx, f), context.Canceled)
				f.proxy.Handle(nil)
				ok(t, f.plain.s.Release(bg, 1)) // the numbers below have it
				ok(t, f.Shutdown(bg))
				soon(t, 6, f.plain.s.Available)
				if all := text(t, f.rdb, "{s}:rlock:all"); !strings.HasPrefix(all, "5 2 ") {
					t.Fatalf("%q are known", all)
				}
			})
		})
	}
}

// A deployment whose processes want another number sets it, however many begin at once, and
// whatever the old ones hold.
func TestDeploymentSetsAnotherNumber(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		old := b.NewClient(t).NewSemaphore("s")
		is(t, true)(old.TrySetPermits(bg, 10))
		ok(t, old.Acquire(bg, 8))
		var clients []*rlock.Client
		for range 5 {
			clients = append(clients, b.NewClient(t))
		}
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				s := clients[i%len(clients)].NewSemaphore("s")
				if set, err := s.TrySetPermits(bg, 20); set || err != nil {
					t.Error(set, err)
				}
				if err := s.SetPermits(bg, 20); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		shows(t, old, 20, 12)
		ok(t, old.SetPermits(bg, 5))
		shows(t, old, 5, -3)
		locktest.WantErr(t, old.TryAcquire(bg, 1), rlock.ErrNotAcquired)
		is(t, -3)(old.Available(bg))
		waiting := begun(func() error { return clients[0].NewSemaphore("s").Acquire(bg, 2) })
		ok(t, old.Release(bg, 3))
		wait(t, waiting)
		ok(t, old.Release(bg, 2))
		ok(t, ended(t, waiting))
		ok(t, old.Release(bg, 5))
		shows(t, old, 5, 5)
	})
}

// Where fewer are free than none, as more are taken than there are to be, Drain takes nothing. The
// number that was set stays the limit.
func TestDrainOfADebtTakesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore/drain", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		f := newFaulty(t, b)
		is(t, true)(f.plain.s.TrySetPermits(bg, 10))
		ok(t, f.plain.s.Acquire(bg, 10))
		ok(t, f.plain.s.SetPermits(bg, 5))
		locktest.OnNth(t, f.proxy, "semaphore/drain", 1, action)
		is(t, 0)(f.s.Drain(bg))
		shows(t, f.plain.s, 5, -5)
		ok(t, f.plain.s.Release(bg, 10))
		shows(t, f.plain.s, 5, 5)
		ok(t, f.plain.s.SetPermits(bg, 6))
		shows(t, f.plain.s, 6, 6)
		is(t, 6)(f.s.Drain(bg))
		is(t, 0)(f.s.Drain(bg))
		shows(t, f.plain.s, 6, 0)
	})
}

// SetPermits wakes waiters, also those for more than there were, in all clients.
func TestSetPermitsWakesWaiters(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		one, two := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), b.NewClient(t, rlock.WithLongestPoll(locktest.Patient))
		s := one.NewSemaphore("s")
		is(t, true)(s.TrySetPermits(bg, 2))
		ok(t, s.Acquire(bg, 2))
		done := []<-chan error{
			begun(func() error { return one.NewSemaphore("s").Acquire(bg, 1) }),
			begun(func() error { return two.NewSemaphore("s").Acquire(bg, 1) }),
			begun(func() error { return two.NewSemaphore("s").Acquire(bg, 5) }),
		}
		wait(t, done...)
		listened(t, b.Client(t), "s", 2)
		ok(t, s.SetPermits(bg, 9))
		for _, d := range done {
			ok(t, ended(t, d))
		}
		shows(t, s, 9, 0)
	})
}

// Who waits for permits of a semaphore that is deleted gets the error of one that has none, at
// once, in each client, and whether or not there were ever enough for it.
func TestDeleteSendsWaitersAway(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		one, two := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), b.NewClient(t, rlock.WithLongestPoll(locktest.Patient))
		s := one.NewSemaphore("s")
		is(t, true)(s.TrySetPermits(bg, 2))
		ok(t, s.Acquire(bg, 2))
		var done []<-chan error
		for _, c := range []*rlock.Client{one, two} {
			for _, n := range []int{1, 1, 2, 5} {
				done = append(done, begun(func() error { return c.NewSemaphore("s").Acquire(bg, n) }))
			}
		}
		wait(t, done...)
		listened(t, b.Client(t), "s", 2)
		is(t, true)(s.Delete(bg))
		for _, d := range done {
			locktest.WantErr(t, ended(t, d), rlock.ErrNotSet, nil, rlock.ErrNotAcquired)
		}
		wantKeys(t, b.Client(t))
		is(t, rlock.SemaphoreState{})(s.State(bg))
		is(t, false)(s.Delete(bg))
		is(t, true)(s.TrySetPermits(bg, 3))
		shows(t, s, 3, 3)
	})
}

// How many permits there are is not known if Java has set them, or if more are free than were
// set. SetPermits says so and changes nothing. AddPermits changes them all the same, and after
// Delete they can be set.
func TestSetPermitsOfANumberThatIsNotKnown(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore/set", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		f := newFaulty(t, b)
		s, rdb := f.s, f.rdb
		for name, begin := range map[string]func(){
			"Java": func() { ok(t, rdb.Set(bg, "s", 7, 0).Err()) },
			"too many released": func() {
				is(t, true)(f.plain.s.TrySetPermits(bg, 5))
				ok(t, f.plain.s.Release(bg, 2))
			},
		} {
			begin()
			all := text(t, rdb, "{s}:rlock:all")
			locktest.OnNth(t, f.proxy, "semaphore/set", 1, action)
			err := s.SetPermits(bg, 6)
			locktest.WantErr(t, err, rlock.ErrTotalUnknown, nil, rlock.ErrInvalidArgument)
			if want := `rlock: "s": how many permits there are is not known`; err.Error() != want {
				t.Fatalf("%s: %v, want %s", name, err, want)
			}
			is(t, rlock.SemaphoreState{Set: true, Available: 7})(s.State(bg))
			if now := text(t, rdb, "{s}:rlock:all"); now != all {
				t.Fatalf("%s: %q are known, want %q", name, now, all)
			}
			ok(t, s.AddPermits(bg, -1))
			is(t, 6)(s.Available(bg))
			is(t, true)(s.Delete(bg))
			wantKeys(t, rdb)
			ok(t, s.SetPermits(bg, 6))
			shows(t, f.plain.s, 6, 6)
			is(t, true)(s.Delete(bg))
		}
	})
}

// What Java has deleted, SetPermits sets as if there had been nothing; Delete takes away what is
// left of it.
func TestWhatJavaHasDeleted(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s, rdb := b.NewClient(t).NewSemaphore("s"), b.Client(t)
		is(t, true)(s.TrySetPermits(bg, 5))
		ok(t, s.Acquire(bg, 2))
		ok(t, rdb.Del(bg, "s").Err())
		is(t, rlock.SemaphoreState{})(s.State(bg))
		ok(t, s.SetPermits(bg, 4))
		shows(t, s, 4, 4)
		ok(t, rdb.Del(bg, "s").Err())
		is(t, false)(s.Delete(bg))
		if left := text(t, rdb, "{s}:rlock:all"); left != "" {
			t.Fatalf("%q is left", left)
		}
	})
}

// More permits than an int of Java can hold, or as many less than none, cannot come of it.
func TestBoundsOfSetPermits(t *testing.T) {
	t.Parallel()
	if strconv.IntSize < 64 {
		t.Skip("an int of 32 bits cannot count twice the most permits")
	}
	most := rlock.MaxPermits
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := b.NewClient(t).NewSemaphore("s")
		ok(t, s.SetPermits(bg, rlock.MaxPermits))
		ok(t, s.Acquire(bg, rlock.MaxPermits))
		ok(t, s.AddPermits(bg, rlock.MaxPermits))
		shows(t, s, 2*most, most)
		ok(t, s.Acquire(bg, rlock.MaxPermits))
		locktest.WantErr(t, s.SetPermits(bg, rlock.MaxPermits-1), rlock.ErrInvalidArgument)
		shows(t, s, 2*most, 0)
		ok(t, s.SetPermits(bg, rlock.MaxPermits))
		shows(t, s, rlock.MaxPermits, -rlock.MaxPermits)
	})
}

// State tells how many wait in this client.
func TestStateOfASemaphoreCountsWaitersOfTheClient(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		s := c.NewSemaphore("s")
		is(t, rlock.SemaphoreState{})(s.State(bg))
		ok(t, s.SetPermits(bg, 1))
		ok(t, s.Acquire(bg, 1))
		ctx, cancel := context.WithCancel(bg)
		var done []<-chan error
		for range 3 {
			done = append(done, begun(func() error { return s.Acquire(ctx, 1) }))
		}
		want := rlock.SemaphoreState{Set: true, Known: true, Permits: 1, Waiters: 3}
		locktest.Eventually(t, "three wait", func() bool { got, err := s.State(bg); return err == nil && got == want })
		is(t, rlock.SemaphoreState{Set: true, Known: true, Permits: 1})(b.NewClient(t).NewSemaphore("s").State(bg))
		cancel()
		for _, d := range done {
			locktest.WantErr(t, ended(t, d), context.Canceled)
		}
		ok(t, c.Close())
		_, err := s.State(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
		locktest.WantErr(t, s.SetPermits(bg, 2), rlock.ErrClosed)
		_, err = s.Delete(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
	})
}

// The names may have braces, and keys stay in one slot of a cluster, where messages are sharded.
func TestTotalInACluster(t *testing.T) {
	t.Parallel()
	b := locktest.OnCluster(t)
	for i, name := range []string{"plain", "{tag}x", "x{tag}"} {
		one, two := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewSemaphore(name), b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewSemaphore(name)
		ok(t, one.SetPermits(bg, 1+i))
		shows(t, two, 1+i, 1+i)
		more, never := begun(func() error { return two.Acquire(bg, 5+i) }), begun(func() error { return two.Acquire(bg, 50) })
		wait(t, more, never)
		ok(t, one.SetPermits(bg, 5+i))
		ok(t, ended(t, more))
		is(t, true)(one.Delete(bg))
		locktest.WantErr(t, ended(t, never), rlock.ErrNotSet)
		for _, key := range []string{name, "{" + name + "}:rlock:all", name + ":rlock:all"} {
			if left := text(t, b.Client(t), key); left != "" {
				t.Fatal(key + " is left: " + strconv.Quote(left))
			}
		}
	}
}
